-- read_bodies: read the bodies of tasks. Read only.
--
-- ARGV: bytes of bodies to stop after, ids
-- Returns for each id its body, nil, or 0 if it was not read: see `read_bodies`.
return read_bodies(KEYS[1], {unpack(ARGV, 2)}, tonumber(ARGV[1]))
