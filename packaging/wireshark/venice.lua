-- Wireshark dissector for Venice's wire format, version 1 (docs/reference/wire.md).
--
--   tshark -X lua_script:packaging/wireshark/venice.lua -r capture.pcapng
--   cp packaging/wireshark/venice.lua ~/.local/lib/wireshark/plugins/
--
-- Frames (VN), packets (VP), hop datagrams (VH) and sealed datagrams (VS) are recognised by their
-- first two bytes on any UDP port. Wireshark 3.6 or newer.

local venice = Proto("venice", "Venice fabric")

local channels = { [0] = "link", [1] = "CRMA", [2] = "RDMA", [3] = "QPair" }
local opcodes = {
  [1] = "Hello", [2] = "Welcome", [3] = "Reset", [4] = "Ack", [5] = "Nak", [6] = "Ping",
  [7] = "Pong", [8] = "Revoked", [9] = "RevokeDone",
  [16] = "Read", [17] = "Data", [18] = "Write", [19] = "Done", [20] = "Refused",
  [21] = "FetchAdd", [22] = "CompareSwap", [23] = "Unmap",
  [32] = "Connect", [33] = "Accept", [34] = "Reject", [35] = "Segment", [36] = "Credit",
  [37] = "Close", [38] = "Abort", [39] = "Probe",
  [40] = "Put",
}
local refusals = {
  [1] = "unknown grant", [2] = "wrong key", [3] = "out of range", [4] = "read only",
  [5] = "unavailable", [6] = "malformed", [7] = "too many grants on the link",
}
local hop_kinds = {
  [1] = "Data", [2] = "Ack", [3] = "Nak", [4] = "Ping", [5] = "Pong", [6] = "Hello",
  [7] = "Welcome", [8] = "LinkState",
}
local algorithms = { [1] = "AES-256-GCM", [2] = "ChaCha20-Poly1305" }
local key_kinds = { [1] = "grant", [2] = "peer" }
local directions = { [0] = "to the key's node", [1] = "its answer" }
local checks = { [0] = "wrong", [1] = "right", [2] = "unchecked" }

local f = venice.fields
f.magic = ProtoField.string("venice.magic", "Magic")
f.version = ProtoField.uint8("venice.version", "Version")
f.channel = ProtoField.uint8("venice.channel", "Channel", base.DEC, channels)
f.opcode = ProtoField.uint8("venice.opcode", "Opcode", base.DEC, opcodes)
f.flags = ProtoField.uint8("venice.flags", "Flags", base.HEX)
f.replay = ProtoField.bool("venice.flags.replay", "Replay", 8, nil, 0x01)
f.unchecked = ProtoField.bool("venice.flags.unchecked", "Without checksum", 8, nil, 0x02)
f.payload_len = ProtoField.uint16("venice.payload_len", "Payload length")
f.src = ProtoField.uint32("venice.src", "Source node")
f.dst = ProtoField.uint32("venice.dst", "Destination node")
f.link = ProtoField.uint32("venice.link", "Link", base.HEX)
f.checksum = ProtoField.uint32("venice.checksum", "Checksum", base.HEX)
f.checksum_status = ProtoField.uint8("venice.checksum.status", "Checksum is", base.DEC, checks)
f.sequence = ProtoField.uint32("venice.sequence", "Sequence")
f.ack = ProtoField.uint32("venice.ack", "Ack")
f.transaction = ProtoField.uint32("venice.transaction", "Transaction")
f.access_len = ProtoField.uint16("venice.access_len", "Access length")
f.detail = ProtoField.uint16("venice.detail", "Detail")
f.refusal = ProtoField.uint16("venice.refusal", "Refusal", base.DEC, refusals)
f.address = ProtoField.uint64("venice.address", "Address", base.HEX)
f.grant = ProtoField.uint64("venice.grant", "Grant")
f.key = ProtoField.uint64("venice.key", "Key", base.HEX)
f.payload = ProtoField.bytes("venice.payload", "Payload")
f.hop_limit = ProtoField.uint8("venice.packet.hop_limit", "Hop limit")
f.route_len = ProtoField.uint8("venice.packet.route_len", "Route length")
f.route_next = ProtoField.uint8("venice.packet.route_next", "Route next")
f.packet_src = ProtoField.uint32("venice.packet.src", "Packet source node")
f.packet_dst = ProtoField.uint32("venice.packet.dst", "Packet destination node")
f.src_endpoint = ProtoField.uint32("venice.packet.src_endpoint", "Source endpoint")
f.dst_endpoint = ProtoField.uint32("venice.packet.dst_endpoint", "Destination endpoint")
f.port = ProtoField.uint16("venice.packet.port", "Port")
f.hop_kind = ProtoField.uint8("venice.hop.kind", "Kind", base.DEC, hop_kinds)
f.hop_channel = ProtoField.uint8("venice.hop.channel", "Virtual channel")
f.hop_link = ProtoField.uint32("venice.hop.link", "Hop link", base.HEX)
f.hop_sequence = ProtoField.uint32("venice.hop.sequence", "Hop sequence")
f.hop_ack = ProtoField.uint32("venice.hop.ack", "Hop ack")
f.hop_credit = ProtoField.uint16("venice.hop.credit", "Credit")
f.hop_word = ProtoField.uint64("venice.hop.word", "Word", base.HEX)
f.algorithm = ProtoField.uint8("venice.sealed.algorithm", "Algorithm", base.DEC, algorithms)
f.key_kind = ProtoField.uint8("venice.sealed.key_kind", "Key kind", base.DEC, key_kinds)
f.direction = ProtoField.uint8("venice.sealed.direction", "Direction", base.DEC, directions)
f.pieces = ProtoField.uint8("venice.sealed.pieces", "Pieces")
f.piece = ProtoField.uint8("venice.sealed.piece", "Piece")
f.key_id = ProtoField.uint64("venice.sealed.key_id", "Key id")
f.salt = ProtoField.uint64("venice.sealed.salt", "Salt", base.HEX)
f.counter = ProtoField.uint64("venice.sealed.counter", "Counter")
f.text = ProtoField.bytes("venice.sealed.text", "Encrypted")
f.tag = ProtoField.bytes("venice.sealed.tag", "Tag")

local e = venice.experts
e = {
  malformed = ProtoExpert.new("venice.malformed", "Malformed", expert.group.MALFORMED,
    expert.severity.ERROR),
  checksum = ProtoExpert.new("venice.checksum.wrong", "Wrong checksum", expert.group.CHECKSUM,
    expert.severity.ERROR),
  replayed = ProtoExpert.new("venice.replayed", "Sent before", expert.group.SEQUENCE,
    expert.severity.NOTE),
  refused = ProtoExpert.new("venice.refused", "Refused", expert.group.RESPONSE_CODE,
    expert.severity.WARN),
}
venice.experts = { e.malformed, e.checksum, e.replayed, e.refused }

-- CRC-32C, by a table of 256. Wireshark's Lua is 5.2 (library bit32) or 5.4 (operators): both have
-- Wireshark's own library `bit`, signed.
local crc_table = {}
for n = 0, 255 do
  local crc = n
  for _ = 1, 8 do
    local carry = bit.band(crc, 1)
    crc = bit.rshift(crc, 1)
    if carry == 1 then crc = bit.bxor(crc, 0x82f63b78) end
  end
  crc_table[n] = crc
end

-- The checksum of the first `len` bytes without the four at `skip`.
local function crc32c(tvb, len, skip)
  local bytes = tvb:range(0, len):bytes()
  local crc = bit.bnot(0)
  for at = 0, len - 1 do
    if at < skip or at >= skip + 4 then
      local index = bit.band(bit.bxor(crc, bytes:get_index(at)), 0xff)
      crc = bit.bxor(bit.rshift(crc, 8), crc_table[index])
    end
  end
  return bit.tobit(bit.bnot(crc))
end

local function complain(tree, text)
  tree:add_proto_expert_info(e.malformed, text)
end

local function check(tvb, tree, len, skip, unchecked)
  local item = tree:add_le(f.checksum, tvb(skip, 4))
  local status = 2
  if not unchecked then
    status = crc32c(tvb, len, skip) == bit.tobit(tvb(skip, 4):le_uint()) and 1 or 0
  end
  tree:add(f.checksum_status, tvb(skip, 4), status):set_generated()
  if status == 0 then
    item:add_proto_expert_info(e.checksum)
  end
  return status
end

-- Adds the fields of `layout`, little-endian: field, offset, length.
local function add_all(tvb, tree, layout)
  for _, it in ipairs(layout) do tree:add_le(it[1], tvb(it[2], it[3])) end
end

local function describe(tvb, name, opcode)
  local text = name .. " #" .. tvb(24, 4):le_uint() .. " ack " .. tvb(28, 4):le_uint()
  if opcode >= 16 then text = text .. " t" .. tvb(32, 4):le_uint() end
  if name == "Read" or name == "Write" then
    text = text .. " " .. tvb(36, 2):le_uint() .. " B at 0x" .. tvb(40, 8):le_uint64():tohex(-8)
  elseif name == "Refused" then
    text = text .. " (" .. (refusals[tvb(38, 2):le_uint()] or "?") .. ")"
  end
  return text
end

local function frame(tvb, tree)
  if tvb:len() < 64 then
    complain(tree, "a frame has at least 64 bytes")
    return "malformed"
  end
  add_all(tvb, tree, { { f.version, 2, 1 }, { f.channel, 3, 1 }, { f.opcode, 4, 1 } })
  local flags = tree:add_le(f.flags, tvb(5, 1))
  flags:add_le(f.replay, tvb(5, 1))
  flags:add_le(f.unchecked, tvb(5, 1))
  add_all(tvb, tree, {
    { f.payload_len, 6, 2 }, { f.src, 8, 4 }, { f.dst, 12, 4 }, { f.link, 16, 4 },
  })
  local len, bits = tvb(6, 2):le_uint(), tvb(5, 1):uint()
  local channel, opcode = tvb(3, 1):uint(), tvb(4, 1):uint()
  if tvb:len() ~= 64 + len then
    complain(tree, "the frame says " .. 64 + len .. " bytes and has " .. tvb:len())
  else
    check(tvb, tree, 64 + len, 20, bit.band(bits, 2) ~= 0)
  end
  add_all(tvb, tree, {
    { f.sequence, 24, 4 }, { f.ack, 28, 4 }, { f.transaction, 32, 4 }, { f.access_len, 36, 2 },
    { opcode == 20 and f.refusal or f.detail, 38, 2 }, { f.address, 40, 8 }, { f.grant, 48, 8 },
    { f.key, 56, 8 },
  })
  if tvb:len() > 64 then tree:add(f.payload, tvb(64)) end
  local name = opcodes[opcode]
  if tvb(2, 1):uint() ~= 1 then complain(tree, "a version this dissector does not know") end
  if not name or not channels[channel] then
    complain(tree, "no such opcode or channel")
    name = "opcode " .. opcode
  end
  if bit.band(bits, 1) ~= 0 then tree:add_proto_expert_info(e.replayed) end
  if opcode == 20 then tree:add_proto_expert_info(e.refused) end
  return describe(tvb, name, opcode)
end

local any

local function packet(tvb, tree)
  if tvb:len() < 28 then
    complain(tree, "a packet has at least 28 bytes")
    return "malformed packet"
  end
  add_all(tvb, tree, {
    { f.version, 2, 1 }, { f.flags, 3, 1 }, { f.hop_limit, 4, 1 }, { f.route_len, 5, 1 },
    { f.route_next, 6, 1 }, { f.packet_src, 8, 4 }, { f.packet_dst, 12, 4 },
    { f.src_endpoint, 16, 4 }, { f.dst_endpoint, 20, 4 }, { f.payload_len, 24, 2 },
  })
  local hops, len = tvb(5, 1):uint(), tvb(24, 2):le_uint()
  local at = 28 + 2 * hops
  if tvb:len() ~= at + len then
    complain(tree, "the packet says " .. at + len .. " bytes and has " .. tvb:len())
    return "malformed packet"
  end
  for hop = 0, hops - 1 do tree:add_le(f.port, tvb(28 + 2 * hop, 2)) end
  local way = tvb(8, 4):le_uint() .. "→" .. tvb(12, 4):le_uint()
  return way .. " " .. any(tvb(at):tvb(), tree)
end

local function hop(tvb, tree)
  if tvb:len() < 40 then
    complain(tree, "a hop datagram has at least 40 bytes")
    return "malformed hop datagram"
  end
  add_all(tvb, tree, { { f.version, 2, 1 }, { f.hop_kind, 3, 1 } })
  local flags = tree:add_le(f.flags, tvb(4, 1))
  flags:add_le(f.replay, tvb(4, 1))
  flags:add_le(f.unchecked, tvb(4, 1))
  add_all(tvb, tree, { { f.hop_channel, 5, 1 }, { f.payload_len, 6, 2 }, { f.hop_link, 8, 4 } })
  local len, kind, bits = tvb(6, 2):le_uint(), tvb(3, 1):uint(), tvb(4, 1):uint()
  local is_whole = tvb:len() == 40 + len
  if is_whole then
    check(tvb, tree, 40 + len, 12, bit.band(bits, 2) ~= 0)
  else
    complain(tree, "the datagram says " .. 40 + len .. " bytes and has " .. tvb:len())
  end
  add_all(tvb, tree, { { f.hop_sequence, 16, 4 }, { f.hop_ack, 20, 4 } })
  for channel = 0, 3 do tree:add_le(f.hop_credit, tvb(24 + 2 * channel, 2)) end
  add_all(tvb, tree, { { f.hop_word, 32, 8 } })
  if bit.band(bits, 1) ~= 0 then tree:add_proto_expert_info(e.replayed) end
  local text = "hop " .. (hop_kinds[kind] or kind) .. " #" .. tvb(16, 4):le_uint() .. " ack "
    .. tvb(20, 4):le_uint()
  if not hop_kinds[kind] then complain(tree, "no such kind of hop datagram") end
  if is_whole and kind == 1 then return text .. " | " .. any(tvb(40):tvb(), tree) end
  if len > 0 and is_whole then tree:add(f.payload, tvb(40)) end
  return text
end

local function sealed(tvb, tree)
  if tvb:len() < 48 then
    complain(tree, "a sealed datagram has at least 48 bytes")
    return "malformed sealed datagram"
  end
  add_all(tvb, tree, {
    { f.version, 2, 1 }, { f.algorithm, 3, 1 }, { f.key_kind, 4, 1 }, { f.direction, 5, 1 },
  })
  local pieces = tvb(6, 1):uint()
  tree:add(f.pieces, tvb(6, 1), bit.band(pieces, 15))
  tree:add(f.piece, tvb(6, 1), bit.rshift(pieces, 4))
  add_all(tvb, tree, { { f.key_id, 8, 8 }, { f.salt, 16, 8 }, { f.counter, 24, 8 } })
  if tvb:len() > 48 then tree:add(f.text, tvb(32, tvb:len() - 48)) end
  tree:add(f.tag, tvb(tvb:len() - 16, 16))
  local kind = key_kinds[tvb(4, 1):uint()]
  if not kind or not algorithms[tvb(3, 1):uint()] then complain(tree, "no such key or algorithm") end
  return "sealed, key of " .. (kind or "?") .. " " .. tostring(tvb(8, 8):le_uint64()) .. ", number "
    .. tostring(tvb(24, 8):le_uint64())
end

local layers = {
  VN = { "frame", frame }, VP = { "packet", packet }, VH = { "hop datagram", hop },
  VS = { "sealed datagram", sealed },
}

-- Dissects what begins with a magic; returns a line about it.
any = function(tvb, tree)
  local layer = tvb:len() >= 2 and layers[tvb(0, 2):string()]
  if not layer then
    complain(tree, "neither frame nor sealed datagram")
    return "malformed"
  end
  local subtree = tree:add(venice, tvb(), "Venice " .. layer[1])
  subtree:add(f.magic, tvb(0, 2))
  return layer[2](tvb, subtree)
end

-- What a frame, a packet or a hop datagram says of its own length; nil where it is cut short.
local lengths = {
  VN = function(tvb) return tvb:len() >= 8 and 64 + tvb(6, 2):le_uint() end,
  VP = function(tvb)
    return tvb:len() >= 26 and 28 + 2 * tvb(5, 1):uint() + tvb(24, 2):le_uint()
  end,
  VH = function(tvb) return tvb:len() >= 8 and 40 + tvb(6, 2):le_uint() end,
}

-- Where the second of a train of sealed datagrams begins: none says its length, but it bears the
-- key and the salt of the first, and the next number.
lengths.VS = function(tvb)
  if tvb:len() < 96 then return nil end
  local raw, number = tvb():raw(), tvb(24, 8):le_uint64()
  local same, from = raw:sub(9, 24), 49
  while true do
    local at = raw:find(same, from + 8, true)
    if not at or at + 23 > #raw then return nil end
    local start = at - 9
    if raw:sub(start + 1, start + 6) == raw:sub(1, 6)
      and tvb(start + 24, 8):le_uint64() == number + 1 then
      return start
    end
    from = at - 7
  end
end

-- Where the kernel cuts trains of datagrams up and keeps them together (UDP_SEGMENT, UDP_GRO), a
-- capture on the same machine has them whole: one behind the other.
local function train(tvb, tree)
  local texts = {}
  while true do
    local magic = tvb(0, 2):string()
    local len = lengths[magic](tvb)
    local goes_on = len and tvb:len() >= len + 3 and tvb(len, 2):string() == magic
    texts[#texts + 1] = any(goes_on and tvb(0, len):tvb() or tvb, tree)
    if not goes_on then break end
    tvb = tvb(len):tvb()
  end
  if #texts == 1 then return texts[1] end
  return "train of " .. #texts .. ": " .. texts[1] .. " … " .. texts[#texts]
end

function venice.dissector(tvb, pinfo, tree)
  if tvb:len() < 3 or not layers[tvb(0, 2):string()] then return 0 end
  pinfo.cols.protocol = "Venice"
  pinfo.cols.info = train(tvb, tree)
  return tvb:len()
end

venice:register_heuristic("udp", function(tvb, pinfo, tree)
  if tvb:len() < 28 or not layers[tvb(0, 2):string()] or tvb(2, 1):uint() ~= 1 then return false end
  return venice.dissector(tvb, pinfo, tree) > 0
end)

-- The agents' usual port, and so also what is too short or of another version there.
DissectorTable.get("udp.port"):add(7471, venice)
DissectorTable.get("udp.port"):add(7472, venice)
