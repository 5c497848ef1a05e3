-- A function that some scripts share: scripts.py puts this file between the prelude and each of them.

-- The bodies of tasks, nil for one without, and 0 for each of the last ones that do not fit into `max_bytes` bytes. At
-- least one body is read. They are read in growing steps, because all of them together may be far too large.
local function read_bodies(pool, ids, max_bytes)
  local bodies, bytes, step, fits = {}, 0, 8, true
  while fits and #bodies < #ids do
    for _, body in ipairs(redis.call('HMGET', pool, unpack(ids, #bodies + 1, math.min(#bodies + step, #ids)))) do
      bytes = bytes + (body and #body or 0)
      fits = fits and (bytes <= max_bytes or #bodies == 0)
      if fits then bodies[#bodies + 1] = body end
    end
    step = step * 2
  end
  for n = #bodies + 1, #ids do bodies[n] = 0 end
  return bodies
end
