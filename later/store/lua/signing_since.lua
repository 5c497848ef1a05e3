-- signing_since: read the generations of signing secrets, if they have changed since a version. Read only.
--
-- ARGV: the version that is known ('' for none)
-- Returns {version}, or {version, scope, generations, ...} if it is another version: all that there are.
--
-- Only scopes that were rotated have an entry, so there are few.
local signing, known = KEYS[1], ARGV[1]

local version = redis.call('HGET', signing, 'version') or '0'
local answer = {tonumber(version)}
if known == version then return answer end
append_fields(answer, signing)
return answer
