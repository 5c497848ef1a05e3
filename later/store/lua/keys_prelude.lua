-- A function that the scripts of API keys share: scripts.py puts this file between the prelude and each of them.

-- Return the number of the keys' version; of one that is damaged 1, because the store has had keys.
local function version_number(version)
  local number = tonumber(version)
  return number and number >= 0 and number < 2 ^ 53 and math.floor(number) or 1
end
