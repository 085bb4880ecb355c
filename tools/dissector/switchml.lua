-- SPDX-License-Identifier: Apache-2.0
-- SwitchML for Wireshark and tshark: datagrams of wire version 1 on any UDP port, and the control connection on any TCP
-- port. docs/PROTOCOL.md has the formats; tests/dissector_test.py holds this file against the C headers.
--   tshark -X lua_script:switchml.lua -o udp.try_heuristic_first:TRUE -r run.pcapng -O switchml
-- (the option because of ports that Wireshark knows as another protocol's; what it says of a "possible traceroute" is of
-- ports near 33434, which a rank's socket may have),
-- or copy it to Wireshark's plugins folder (Help, About, Folders).

local WIRE_VERSION = 1
local HEADER_BYTES = 32
local KEYED_BYTES = 4
local CHECK_BYTES = 4

local packet_types = {[1] = "UPDATE", [2] = "RESULT", [3] = "PENDING", [4] = "ERROR", [5] = "HELLO", [6] = "ABORT",
                      [7] = "PROBE"}
local wires = {[0] = "int32 lanes", [1] = "uint8", [2] = "uint32", [3] = "uint64"}
local reducers = {[0] = "SUM", [1] = "MAX", [2] = "TO_OWNER", [3] = "COPY", [4] = "PRODUCT", [5] = "OR"}
local FLAG_RETRANSMISSION, FLAG_KEYED, FLAG_CHECKED, FLAG_BY_GRANT, FLAG_UNASKED = 1, 2, 4, 8, 16
local FLAG_MARKED, FLAG_DEAF, FLAG_NARROW = 32, 64, 128
local KNOWN_FLAGS = 255

local p = Proto("switchml", "SwitchML")
p.prefs.crc = Pref.bool("Check the CRC", true, "Compute CRC-32C of every datagram")

local f = p.fields
f.version = ProtoField.uint8("switchml.version", "Version", base.DEC, nil, 0xf0)
f.type = ProtoField.uint8("switchml.type", "Type", base.DEC, packet_types, 0x0f)
f.wire = ProtoField.uint8("switchml.wire", "Wire type", base.DEC, wires, 0xf0)
f.reducer = ProtoField.uint8("switchml.reducer", "Reducer", base.DEC, reducers, 0x0f)
f.job = ProtoField.uint16("switchml.job", "Job")
f.epoch = ProtoField.uint32("switchml.epoch", "Epoch", base.HEX)
f.rank = ProtoField.uint16("switchml.rank", "Rank or contributor")
f.payload_bytes = ProtoField.uint16("switchml.payload_bytes", "Payload bytes")
f.slot = ProtoField.uint16("switchml.slot", "Slot")
f.flags = ProtoField.uint16("switchml.flags", "Flags", base.HEX)
f.retransmission = ProtoField.bool("switchml.flags.retransmission", "Retransmission", 16, nil, FLAG_RETRANSMISSION)
f.keyed = ProtoField.bool("switchml.flags.keyed", "Keyed", 16, nil, FLAG_KEYED)
f.checked = ProtoField.bool("switchml.flags.checked", "Checked", 16, nil, FLAG_CHECKED)
f.by_grant = ProtoField.bool("switchml.flags.by_grant", "By grant", 16, nil, FLAG_BY_GRANT)
f.unasked = ProtoField.bool("switchml.flags.unasked", "Unasked", 16, nil, FLAG_UNASKED)
f.marked = ProtoField.bool("switchml.flags.marked", "Marked", 16, nil, FLAG_MARKED)
f.deaf = ProtoField.bool("switchml.flags.deaf", "Deaf", 16, nil, FLAG_DEAF)
f.narrow = ProtoField.bool("switchml.flags.narrow", "Narrow", 16, nil, FLAG_NARROW)
f.phase = ProtoField.uint32("switchml.phase", "Phase")
f.tag = ProtoField.uint32("switchml.tag", "Tag", base.HEX)
f.chunk = ProtoField.uint32("switchml.chunk", "Chunk")
f.owner = ProtoField.uint32("switchml.owner", "Owner")
f.crc = ProtoField.uint32("switchml.crc32c", "CRC-32C", base.HEX)
f.mac = ProtoField.uint64("switchml.mac", "MAC", base.HEX)
f.payload = ProtoField.bytes("switchml.payload", "Payload")
f.check_word = ProtoField.uint32("switchml.check_word", "Check word", base.HEX)
f.nonce = ProtoField.uint64("switchml.nonce", "Nonce", base.HEX)
f.missing = ProtoField.uint16("switchml.missing", "Missing")

local bad_crc = ProtoExpert.new("switchml.crc.bad", "Wrong CRC", expert.group.CHECKSUM, expert.severity.ERROR)
local bad_length = ProtoExpert.new("switchml.length.bad", "Length is not what the header says", expert.group.MALFORMED,
                                   expert.severity.ERROR)
local bad_version = ProtoExpert.new("switchml.version.bad", "Another wire version", expert.group.PROTOCOL,
                                    expert.severity.WARN)
local odd_flags = ProtoExpert.new("switchml.flags.odd", "Flags that version 1 does not have", expert.group.PROTOCOL,
                                  expert.severity.WARN)
local odd_message = ProtoExpert.new("switchml_control.odd", "A message that does not end where its fields do",
                                    expert.group.PROTOCOL, expert.severity.WARN)
p.experts = {bad_crc, bad_length, bad_version, odd_flags}

-- ---- CRC-32C, of the header with this field zero and all behind it ----

local crc_table = {}
for i = 0, 255 do
  local crc = i
  for _ = 1, 8 do
    local low = bit.band(crc, 1)
    crc = bit.rshift(crc, 1)
    if low == 1 then crc = bit.bxor(crc, 0x82f63b78) end
  end
  crc_table[i] = crc
end

-- The checksums of a job's epoch have a mask that its members alone know. The first datagram shows it, and those with
-- another one are damaged, or forged.
local masks = {}
function p.init() masks = {} end

local function crc32c(bytes)
  local crc = bit.bnot(0)
  for i = 0, bytes:len() - 1 do
    local byte = (i >= 28 and i < 32) and 0 or bytes:get_index(i)
    crc = bit.bxor(bit.rshift(crc, 8), crc_table[bit.band(bit.bxor(crc, byte), 0xff)])
  end
  return bit.tobit(bit.bnot(crc))
end

-- ---- datagrams ----

-- 1: ours, 0: no, or of another version. Ports are anybody's, so the header must fit in all that it says.
-- As the header's byte.
local pairs_of_wire_and_reducer = {[0x00] = true, [0x11] = true, [0x21] = true, [0x31] = true, [0x24] = true,
                                   [0x34] = true, [0x25] = true, [0x02] = true, [0x13] = true}

local function looks_like_datagram(buffer)
  if buffer:len() < HEADER_BYTES or buffer:captured_len() < HEADER_BYTES then return false end
  local kind, wire = buffer(0, 1):uint(), buffer(1, 1):uint()
  local flags, bytes = buffer(14, 2):uint(), buffer(10, 2):uint()
  local head = bit.band(flags, FLAG_KEYED) ~= 0 and HEADER_BYTES + KEYED_BYTES or HEADER_BYTES
  return bit.rshift(kind, 4) == WIRE_VERSION and packet_types[bit.band(kind, 15)] ~= nil and
         pairs_of_wire_and_reducer[wire] and bit.band(flags, bit.bnot(KNOWN_FLAGS)) == 0 and buffer:len() == head + bytes
end

local function add_missing(tree, payload)
  local names = {}
  for i = 0, payload:len() - 1 do
    local byte = payload(i, 1):uint()
    for b = 0, 7 do
      if bit.band(bit.rshift(byte, b), 1) == 1 then
        tree:add(f.missing, payload(i, 1), i * 8 + b)
        names[#names + 1] = tostring(i * 8 + b)
      end
    end
  end
  return #names > 0 and " missing=" .. table.concat(names, ",", 1, math.min(#names, 8)) or ""
end

local function add_payload(tree, type, flags, payload)
  if payload:len() == 0 then return "" end
  if type == 3 then return add_missing(tree, payload) end
  if type == 5 and payload:len() >= 8 then
    tree:add(f.nonce, payload(0, 8))
    return ""
  end
  tree:add(f.payload, payload)
  if bit.band(flags, FLAG_CHECKED) ~= 0 and payload:len() > CHECK_BYTES then
    tree:add(f.check_word, payload(payload:len() - CHECK_BYTES, CHECK_BYTES))
  end
  return ""
end

local function add_flags(tree, range)
  local flags = tree:add(f.flags, range)
  local fields = {f.retransmission, f.keyed, f.checked, f.by_grant, f.unasked, f.marked, f.deaf, f.narrow}
  for _, field in ipairs(fields) do flags:add(field, range) end
  if bit.band(range:uint(), bit.bnot(KNOWN_FLAGS)) ~= 0 then flags:add_proto_expert_info(odd_flags) end
end

local function dissect_datagram(buffer, pinfo, root)
  local tree = root:add(p, buffer())
  pinfo.cols.protocol = "SwitchML"
  if bit.rshift(buffer(0, 1):uint(), 4) ~= WIRE_VERSION then
    tree:add(f.version, buffer(0, 1)):add_proto_expert_info(bad_version)
    pinfo.cols.info = "another wire version"
    return buffer:len()
  end
  if buffer:len() < HEADER_BYTES then
    tree:add_proto_expert_info(bad_length)
    pinfo.cols.info = "cut off"
    return buffer:len()
  end
  local type, flags, bytes = bit.band(buffer(0, 1):uint(), 15), buffer(14, 2):uint(), buffer(10, 2):uint()
  tree:add(f.version, buffer(0, 1))
  tree:add(f.type, buffer(0, 1))
  tree:add(f.wire, buffer(1, 1))
  tree:add(f.reducer, buffer(1, 1))
  tree:add(f.job, buffer(2, 2))
  tree:add(f.epoch, buffer(4, 4))
  tree:add(f.rank, buffer(8, 2))
  tree:add(f.payload_bytes, buffer(10, 2))
  tree:add(f.slot, buffer(12, 2))
  add_flags(tree, buffer(14, 2))
  tree:add(f.phase, buffer(16, 4))
  tree:add(f.tag, buffer(20, 4))
  local reducer = buffer(1, 1):bitfield(4, 4)
  -- In one-way windows it stands where the chunk does, but in an unasked PENDING, which names a position (R198).
  local has_owner = (reducer == 2 or reducer == 3) and bit.band(flags, FLAG_UNASKED) == 0
  tree:add(has_owner and f.owner or f.chunk, buffer(24, 4))
  local head = HEADER_BYTES
  if bit.band(flags, FLAG_KEYED) ~= 0 and buffer:len() >= HEADER_BYTES + KEYED_BYTES then
    head = HEADER_BYTES + KEYED_BYTES
    tree:add(f.mac, buffer(28, 8))
  else
    local crc = tree:add(f.crc, buffer(28, 4))
    if p.prefs.crc and buffer:captured_len() == buffer:reported_len() then
      local epoch = tostring(buffer(2, 6):bytes())
      local mask = bit.bxor(bit.tobit(buffer(28, 4):uint()), crc32c(buffer:bytes()))
      if masks[epoch] == nil then masks[epoch] = mask end
      if masks[epoch] ~= mask then crc:add_proto_expert_info(bad_crc) end
    end
  end
  local more = ""
  if buffer:len() ~= head + bytes then tree:add_proto_expert_info(bad_length)
  elseif bytes > 0 then more = add_payload(tree, type, flags, buffer(head, bytes)) end
  local again = bit.band(flags, FLAG_RETRANSMISSION) ~= 0 and " again" or ""
  pinfo.cols.info = string.format("%s job=%u rank=%u slot=%u phase=%u chunk=%u%s%s",
                                  packet_types[type] or "type " .. type, buffer(2, 2):uint(), buffer(8, 2):uint(),
                                  buffer(12, 2):uint(), buffer(16, 4):uint(), buffer(24, 4):uint(), again, more)
  return buffer:len()
end

p.dissector = dissect_datagram

p:register_heuristic("udp", function(buffer, pinfo, root)
  if not looks_like_datagram(buffer) then return false end
  dissect_datagram(buffer, pinfo, root)
  return true
end)
DissectorTable.get("udp.port"):add_for_decode_as(p)

-- ---- the control connection ----

local CONTROL_MAGIC = 0x534d4c31
local CONTROL_VERSION = 10
local CONTROL_HEADER_BYTES = 12
local CONTROL_MAC_BYTES = 8
local CONTROL_HAS_MAC = 0x8000
local MAX_BODY_BYTES = 65536

local message_kinds = {
  [1] = "JOIN", [2] = "WELCOME", [3] = "PROBED", [4] = "START", [5] = "HEARTBEAT", [6] = "EPOCH", [7] = "ABORT",
  [8] = "RANK_GONE", [9] = "GOODBYE", [10] = "REFUSE", [11] = "CHALLENGE", [12] = "AUTH", [13] = "STATUS",
  [14] = "STATUS_PART", [15] = "ASK", [16] = "REPORT",
  [17] = "EVICT", [18] = "EVICTED"
}

local c = Proto("switchml_control", "SwitchML control")
local g = c.fields
g.magic = ProtoField.uint32("switchml_control.magic", "Magic", base.HEX)
g.version = ProtoField.uint16("switchml_control.version", "Version")
g.kind = ProtoField.uint16("switchml_control.kind", "Kind", base.DEC, message_kinds, 0x7fff)
g.has_mac = ProtoField.bool("switchml_control.has_mac", "Has a MAC", 16, nil, CONTROL_HAS_MAC)
g.body_bytes = ProtoField.uint32("switchml_control.body_bytes", "Body bytes")
g.text = ProtoField.string("switchml_control.text", "Text")
g.number = ProtoField.uint64("switchml_control.number", "Number")
g.nonce = ProtoField.bytes("switchml_control.nonce", "Nonce")
g.mac = ProtoField.uint64("switchml_control.mac", "MAC", base.HEX)
g.rest = ProtoField.bytes("switchml_control.rest", "Fields of another release")
c.experts = {odd_message}

-- The fields of each body in their order: a width in bits, "text", or {count's place, bits} for so many of them.
local bodies = {
  -- JOIN
  [1] = {{"job", "text"}, {"rank", 32}, {"world_size", 32}, {"lanes", 32}, {"slots", 32},
    {"max_datagram_bytes", 32}, {"lease_ns", 64}, {"join_timeout_ns", 64}, {"features", 32}, {"key_name", "text"},
    {"nonce", 128}, {"resume_operation", 64}, {"oldest_operation", 64}, {"resume_chunk_bytes", 32}, {"host", 128},
    {"combining", 32}, {"shard", 32}, {"shards", 32}, {"aggregators", "text"}},
  -- WELCOME
  [2] = {{"job", 16}, {"epoch", 32}, {"nonce", 64}, {"lanes", 32}, {"data_port", 16, "lanes"}, {"salt", 128},
    {"group", 128}, {"group_port", 16}, {"secret", 128}},
  -- PROBED
  [3] = {{"datagram_bytes", 32}, {"rtt", 64}, {"hearing", 32}},
  -- START
  [4] = {{"epoch", 32}, {"lanes", 32}, {"chunk_bytes", 32}, {"slots", 32}, {"slot_base", 16, "lanes"},
    {"first_phase", 32}, {"first_chunk", 32}, {"features", 32}, {"rtt", 64}, {"slots_why", 32},
    {"first_operation", 64}, {"multicast", 32}, {"one_host", 32}, {"secret", 128}, {"ranks", 32}, {"contributor", 16, "ranks"}},
  -- HEARTBEAT
  [5] = {{"submitted", 64}, {"completed", 64}, {"called", 64}},
  -- EPOCH
  [6] = {{"epoch", 32}},
  -- ABORT
  [7] = {{"status", 32}, {"ranks", 32}, {"rank", 16, "ranks"}, {"detail", "text"}},
  -- RANK_GONE
  [8] = {{"status", 32}, {"ranks", 32}, {"rank", 16, "ranks"}, {"detail", "text"}},
  -- GOODBYE
  [9] = {},
  -- REFUSE
  [10] = {{"status", 32}, {"detail", "text"}},
  -- CHALLENGE
  [11] = {{"nonce", 128}},
  -- AUTH
  [12] = {},
  -- STATUS
  [13] = {{"key_name", "text"}, {"nonce", 128}, {"offset_bytes", 32}},
  -- STATUS_PART
  [14] = {{"total_bytes", 32}, {"offset_bytes", 32}, {"text", "text"}},
  -- ASK
  [15] = {},
  -- REPORT
  [16] = {{"ranks", 32}, {"rank", 16, "ranks"}, {"detail", "text"}},
  -- EVICT
  [17] = {{"job", "text"}, {"detail", "text"}},
  -- EVICTED
  [18] = {{"jobs", 32}, {"ranks", 32}},
}

local function add_field(tree, body, at, name, bits)
  local bytes = bits / 8
  if at + bytes > body:len() then return nil end
  if bits > 64 then tree:add(g.nonce, body(at, bytes)):prepend_text(name .. ": ")
  else tree:add(g.number, body(at, bytes)):set_text(name .. ": " .. tostring(body(at, bytes):uint64())) end
  return at + bytes
end

local function add_body(tree, kind, body)
  local at, seen = 0, {}
  for _, field in ipairs(bodies[kind] or {}) do
    local name, what = field[1], field[2]
    if what == "text" then
      if at + 2 > body:len() or at + 2 + body(at, 2):uint() > body:len() then return nil end
      local bytes = body(at, 2):uint()
      local value = body(at + 2, bytes):string()
      tree:add(g.text, body(at, 2 + bytes), value):set_text(name .. ": " .. value)
      at = at + 2 + bytes
    else
      local times = field[3] and seen[field[3]] or 1
      for i = 1, math.min(times, 4096) do
        if at + what / 8 > body:len() then return nil end
        if what <= 32 then seen[name] = body(at, what / 8):uint() end
        at = add_field(tree, body, at, times > 1 and name .. " " .. (i - 1) or name, what)
      end
    end
  end
  if at < body:len() then tree:add(g.rest, body(at)) end
  return at
end

local function message_bytes(buffer, _, offset)
  local has_mac = bit.band(buffer(offset + 6, 2):uint(), CONTROL_HAS_MAC) ~= 0
  local body_bytes = math.min(buffer(offset + 8, 4):uint(), MAX_BODY_BYTES)
  return CONTROL_HEADER_BYTES + body_bytes + (has_mac and CONTROL_MAC_BYTES or 0)
end

local function dissect_message(buffer, pinfo, root)
  local kind, bytes = bit.band(buffer(6, 2):uint(), 0x7fff), buffer(8, 4):uint()
  local name = message_kinds[kind] or "kind " .. kind
  local tree = root:add(c, buffer(), "SwitchML control: " .. name)
  tree:add(g.magic, buffer(0, 4))
  tree:add(g.version, buffer(4, 2))
  tree:add(g.kind, buffer(6, 2))
  tree:add(g.has_mac, buffer(6, 2))
  tree:add(g.body_bytes, buffer(8, 4))
  local has_mac = bit.band(buffer(6, 2):uint(), CONTROL_HAS_MAC) ~= 0
  if bytes <= MAX_BODY_BYTES and buffer:len() >= CONTROL_HEADER_BYTES + bytes then
    -- Only what every version has is known of another one: the header, and all of REFUSE.
    local is_known = buffer(4, 2):uint() == CONTROL_VERSION or kind == 10
    if bytes > 0 and not is_known then tree:add(g.rest, buffer(CONTROL_HEADER_BYTES, bytes))
    elseif bytes > 0 and add_body(tree, kind, buffer(CONTROL_HEADER_BYTES, bytes):tvb()) == nil then
      tree:add_proto_expert_info(odd_message)
    end
    if has_mac then tree:add(g.mac, buffer(CONTROL_HEADER_BYTES + bytes, CONTROL_MAC_BYTES)) end
  end
  pinfo.cols.protocol = "SwitchML"
  pinfo.cols.info = name .. (has_mac and " (MAC)" or "")
  return buffer:len()
end

-- By hand instead of dissect_tcp_pdus(), which a heuristic may not use for its first segment.
function c.dissector(buffer, pinfo, root)
  local at = 0
  while at < buffer:len() do
    local left = buffer:len() - at
    if left < CONTROL_HEADER_BYTES then
      pinfo.desegment_offset = at
      pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
      return buffer:len()
    end
    if buffer(at, 4):uint() ~= CONTROL_MAGIC then return at end
    local bytes = message_bytes(buffer, pinfo, at)
    if left < bytes then
      pinfo.desegment_offset = at
      pinfo.desegment_len = bytes - left
      return buffer:len()
    end
    dissect_message(buffer(at, bytes):tvb(), pinfo, root)
    at = at + bytes
  end
  return at
end

c:register_heuristic("tcp", function(buffer, pinfo, root)
  if buffer:len() < 4 or buffer(0, 4):uint() ~= CONTROL_MAGIC then return false end
  pinfo.conversation = c
  c.dissector(buffer, pinfo, root)
  return true
end)
DissectorTable.get("tcp.port"):add_for_decode_as(c)
