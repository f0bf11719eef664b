-- Wireshark dissector of ringrail's lanes.
--
--   wireshark -X lua_script:perf/ringrail.lua FILE.pcap
--
-- A lane begins with "RINGRAIL" in both directions (hello, reply). After that a control lane
-- carries a proof and segments of frames, and a bulk lane carries chunks; engine/SPEC.md has the drawings.
-- Datagrams are packets (kind 16): header, floor, acknowledgement, content, tag; the content is one
-- segment, or padding. They are known by their form; "Decode As" names a port for certain.
-- The layouts stand in the tables below, one row per field: { name, bytes, kind }, in the order
-- of the wire. Offsets and lengths follow from them, so that a new field is a new row.

local ringrail = Proto("ringrail", "ringrail lane")

local MAGIC = "RINGRAIL"
local PROOF_MAGIC = "RRPF"
local CHUNK_MAGIC = "RRCK"
local SEGMENT_BYTES_MAX = 132 * 1024
local CHUNK_BYTES_MAX = 16 * 1024 * 1024

local PACKET_KIND = 16
local PACKET_ACK, PACKET_FLOOR, PACKET_ELICITS, PACKET_ACK_NOW, PACKET_PROBE = 1, 2, 4, 8, 16
local PACKET_FLAGS_MAX = 31
local TAG_BYTES = 8

local KINDS = { [1] = "control", [2] = "bulk", [3] = "move" }
local STATUS = {
  [0] = "accepted", "election lost", "already connected", "wrong engine", "wrong version",
  "unknown session", "busy", "leaving", "malformed", "wrong secret", "stale epoch",
}
local DONE_STATUS = { [0] = "ok", "abandoned" }
local REASONS = { [0] = "closed", "protocol", "corrupted" }
local PROCESSES = { [0] = "unknown", "running", "ended" }
local ROLES = { [0] = "ordinary", "preferred", "backup" }
local FAMILIES = { [4] = "IPv4", [6] = "IPv6" }

-- Kinds of fields: "text", "bytes", "dec", "hex", or a table of names for the values.
local LAYOUTS = {
  hello = {
    { "magic", 8, "text" }, { "version", 2, "dec" }, { "kind", 1, KINDS }, { "flags", 1, "hex" },
    { "segment_bytes_max", 4, "dec" }, { "source", 8, "hex" }, { "target", 8, "hex" },
    { "session", 8, "hex" }, { "lane", 4, "dec" }, { "eager_limit", 4, "dec" },
    { "envelope_limit", 4, "dec" }, { "byte_limit", 4, "dec" },
    { "address_version", 1, "dec" }, { "address_flags", 1, "hex" },
    { "address_endpoint", 2, "dec" }, { "address_port", 2, "dec" },
    { "address_family", 1, FAMILIES }, { "address_locators", 1, "dec" },
    { "address_ips", 32, "bytes" }, { "address_engine", 8, "hex" },
    { "reserved_2", 8, "hex" },
    { "epoch", 4, "dec" }, { "datagram_port", 2, "dec" }, { "datagram_bytes", 2, "dec" },
    { "path", 2, "hex" }, { "reserved", 2, "hex" }, { "answered", 4, "dec" },
    { "nonce", 16, "bytes" }, { "tag", 16, "bytes" },
  },
  reply = {
    { "magic", 8, "text" }, { "version", 2, "dec" }, { "status", 1, STATUS },
    { "flags", 1, "hex" }, { "segment_bytes_max", 4, "dec" },
    { "address_version", 1, "dec" }, { "address_flags", 1, "hex" },
    { "address_endpoint", 2, "dec" }, { "address_port", 2, "dec" },
    { "address_family", 1, FAMILIES }, { "address_locators", 1, "dec" },
    { "address_ips", 32, "bytes" }, { "address_engine", 8, "hex" },
    { "reserved", 8, "hex" },
    { "session", 8, "hex" }, { "envelope_limit", 4, "dec" }, { "byte_limit", 4, "dec" },
    { "eager_limit", 4, "dec" }, { "datagram_port", 2, "dec" }, { "datagram_bytes", 2, "dec" },
    { "nonce", 16, "bytes" }, { "proof", 16, "bytes" },
  },
  proof = { { "magic", 4, "text" }, { "reserved", 4, "hex" }, { "proof", 16, "bytes" } },
  segment = {
    { "length", 4, "dec" }, { "frames", 2, "dec" }, { "flags", 2, "hex" },
    { "first_frame", 4, "dec" }, { "ack", 4, "dec" }, { "envelope_limit", 4, "dec" },
    { "byte_limit", 4, "dec" },
  },
  sums = { { "frames", 4, "hex" }, { "header", 4, "hex" } },
  chunk = {
    { "magic", 4, "text" }, { "number", 4, "dec" }, { "receive_operation", 8, "hex" },
    { "offset", 8, "dec" }, { "length", 4, "dec" }, { "checksum", 4, "hex" },
    { "reserved", 24, "bytes" }, { "tag", 8, "hex" },
  },
  eager = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "target_endpoint", 2, "dec" },
    { "source_endpoint", 2, "dec" }, { "follows", 2, "dec" }, { "context", 4, "dec" },
    { "length", 4, "dec" }, { "tag", 8, "hex" }, { "operation", 8, "hex" },
  },
  rts = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "target_endpoint", 2, "dec" },
    { "source_endpoint", 2, "dec" }, { "reserved", 2, "hex" }, { "context", 4, "dec" },
    { "first_bytes", 4, "dec" }, { "tag", 8, "hex" }, { "operation", 8, "hex" },
    { "length", 8, "dec" },
  },
  grant = {
    { "kind", 1, "dec" }, { "eager_class", 1, "dec" }, { "carrier", 1, "dec" },
    { "reserved", 1, "hex" }, { "number", 4, "dec" },
    { "send_operation", 8, "hex" }, { "receive_operation", 8, "hex" }, { "offset", 8, "dec" },
    { "length", 4, "dec" }, { "chunk", 4, "dec" },
  },
  done = {
    { "kind", 1, "dec" }, { "status", 1, DONE_STATUS }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" }, { "operation", 8, "hex" }, { "accepted", 8, "dec" },
  },
  refused = {
    { "kind", 1, "dec" }, { "carrier", 1, "dec" }, { "reserved", 2, "hex" }, { "number", 4, "dec" },
    { "operation", 8, "hex" },
  },
  matched = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" }, { "operation", 8, "hex" },
  },
  lanes_wanted = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" },
  },
  data = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "reserved", 2, "hex" }, { "length", 4, "dec" },
    { "receive_operation", 8, "hex" }, { "offset", 8, "dec" },
  },
  rail = {
    { "kind", 1, "dec" }, { "index", 1, "dec" }, { "count", 1, "dec" }, { "role", 1, ROLES },
    { "speed_mbps", 4, "dec" }, { "ip", 16, "bytes" }, { "family", 1, FAMILIES },
    { "reserved", 1, "hex" }, { "reserved_2", 2, "hex" }, { "reserved_3", 4, "hex" },
  },
  lane_lost = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "segment_bytes", 2, "dec" },
    { "lane", 4, "dec" },
  },
  process_query = {
    { "kind", 1, "dec" }, { "flags", 1, "hex" }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" }, { "engine", 8, "hex" },
  },
  process_status = {
    { "kind", 1, "dec" }, { "status", 1, PROCESSES }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" }, { "engine", 8, "hex" },
  },
  packet = {
    { "kind", 1, "hex" }, { "flags", 1, "hex" }, { "path", 2, "dec" }, { "number", 4, "dec" },
    { "session", 8, "hex" },
  },
  floor = { { "number", 4, "dec" } },
  ack = {
    { "cumulative", 4, "dec" }, { "delay", 2, "dec" }, { "windows", 1, "dec" },
    { "reserved", 1, "hex" },
  },
  ack_window = { { "first_word", 2, "dec" }, { "words", 1, "dec" }, { "reserved", 1, "hex" } },
  goodbye = {
    { "kind", 1, "dec" }, { "reason", 1, REASONS }, { "reserved", 2, "hex" },
    { "reserved_2", 4, "hex" },
  },
}

-- Frames by their first byte; `payload` names the field that says how many bytes follow.
local FRAMES = {
  [1] = { layout = "eager", payload = "length" },
  [2] = { layout = "rts", payload = "first_bytes" },
  [3] = { layout = "grant" },
  [4] = { layout = "done" },
  [5] = { layout = "refused" },
  [6] = { layout = "matched" },
  [7] = { layout = "lanes_wanted" },
  [8] = { layout = "goodbye" },
  [10] = { layout = "data", payload = "length" },
  [11] = { layout = "rail" },
  [12] = { layout = "lane_lost" },
  [21] = { layout = "process_query" },
  [22] = { layout = "process_status" },
}

-- ---- Fields, out of the tables ----

local what = ProtoField.string("ringrail.what", "What")
local payload = ProtoField.bytes("ringrail.payload", "Payload")
local bad = ProtoExpert.new("ringrail.bad", "Not ringrail's format", expert.group.MALFORMED,
  expert.severity.ERROR)

local words = ProtoField.bytes("ringrail.ack_window.bits", "bits")
local packet_tag = ProtoField.bytes("ringrail.packet.tag", "tag")

local fields = { what, payload, words, packet_tag }
local sizes, offsets, handles = {}, {}, {}

local INTEGERS = {
  [1] = ProtoField.uint8, [2] = ProtoField.uint16, [4] = ProtoField.uint32,
  [8] = ProtoField.uint64,
}

local function make_field(path, name, bytes, kind)
  if kind == "text" then return ProtoField.string(path, name) end
  if kind == "bytes" then return ProtoField.bytes(path, name) end
  local names = type(kind) == "table" and kind or nil
  return INTEGERS[bytes](path, name, kind == "hex" and base.HEX or base.DEC, names)
end

for layout, rows in pairs(LAYOUTS) do
  offsets[layout], handles[layout] = {}, {}
  local at = 0
  for _, row in ipairs(rows) do
    local name, bytes, kind = row[1], row[2], row[3]
    local handle = make_field("ringrail." .. layout .. "." .. name, name, bytes, kind)
    handles[layout][name], offsets[layout][name] = handle, at
    fields[#fields + 1] = handle
    at = at + bytes
  end
  sizes[layout] = at
end

ringrail.fields = fields
ringrail.experts = { bad }

-- Whether the flag of this value, a power of two, is set.
local function has(flags, flag)
  return math.floor(flags / flag) % 2 == 1
end

local function title(layout)
  return string.upper(string.gsub(layout, "_", " "))
end

-- The value of a field of at most four bytes.
local function value(tvb, start, layout, name)
  for _, row in ipairs(LAYOUTS[layout]) do
    if row[1] == name then
      local range = tvb(start + offsets[layout][name], row[2])
      return row[2] <= 4 and range:le_uint() or range:le_uint64():tonumber()
    end
  end
end

-- Adds the fields of a layout that begins at `start`; returns its subtree.
local function add(tvb, tree, layout, start, length)
  local branch = tree:add(tvb(start, length), title(layout))
  branch:add(what, tvb(start, length), title(layout)):set_generated()
  for _, row in ipairs(LAYOUTS[layout]) do
    local name, bytes, kind = row[1], row[2], row[3]
    local range = tvb(start + offsets[layout][name], bytes)
    if kind == "text" or kind == "bytes" then
      branch:add(handles[layout][name], range)
    else
      branch:add_le(handles[layout][name], range)
    end
  end
  return branch
end

-- ---- What comes where ----

-- By TCP stream: the port that said hello. The other side's magic leads a reply.
local openers = {}
local stream_of = Field.new("tcp.stream")

function ringrail.init()
  openers = {}
end

local function greeting(pinfo)
  local stream = stream_of().value
  openers[stream] = openers[stream] or (tostring(pinfo.src) .. " " .. pinfo.src_port)
  local is_opener = openers[stream] == tostring(pinfo.src) .. " " .. pinfo.src_port
  return is_opener and "hello" or "reply"
end

local function starts_with(tvb, start, magic)
  return tvb:len() - start >= #magic and tvb(start, #magic):raw() == magic
end

-- Which layout begins at `start`, and the length of all of it.
local function unit(tvb, pinfo, start)
  if starts_with(tvb, start, MAGIC) then
    local layout = greeting(pinfo)
    return layout, sizes[layout]
  end
  if starts_with(tvb, start, CHUNK_MAGIC) then
    local length = value(tvb, start, "chunk", "length")
    return "chunk", length <= CHUNK_BYTES_MAX and sizes.chunk + length or 0
  end
  if starts_with(tvb, start, PROOF_MAGIC) then return "proof", sizes.proof end
  local length = value(tvb, start, "segment", "length")
  if length < sizes.segment or length > SEGMENT_BYTES_MAX then return "segment", 0 end
  return "segment", length
end

local function frames(tvb, tree, start, stop, names)
  while start < stop do
    local frame = FRAMES[tvb(start, 1):uint()]
    local length = frame and sizes[frame.layout] or 0
    if not frame or start + length > stop then
      tree:add_proto_expert_info(bad, "a frame of unknown type, or cut")
      return
    end
    local data = frame.payload and value(tvb, start, frame.layout, frame.payload) or 0
    if start + length + data > stop then
      tree:add_proto_expert_info(bad, "a payload is longer than its segment")
      return
    end
    local branch = add(tvb, tree, frame.layout, start, length)
    branch:set_len(length + data)
    if data > 0 then branch:add(payload, tvb(start + length, data)) end
    names[#names + 1] = title(frame.layout)
    start = start + length + data
  end
end

function ringrail.dissector(tvb, pinfo, tree)
  local at, total = 0, tvb:len()
  local names = {}
  pinfo.cols.protocol = "ringrail"
  while at < total do
    if total - at < sizes.segment or
       (starts_with(tvb, at, CHUNK_MAGIC) and total - at < sizes.chunk) then
      pinfo.desegment_offset, pinfo.desegment_len = at, DESEGMENT_ONE_MORE_SEGMENT
      break
    end
    local layout, length = unit(tvb, pinfo, at)
    if length == 0 then
      tree:add(ringrail, tvb(at)):add_proto_expert_info(bad, "a length out of range")
      break
    end
    if total - at < length then
      pinfo.desegment_offset, pinfo.desegment_len = at, length - (total - at)
      break
    end
    local branch = tree:add(ringrail, tvb(at, length), "ringrail " .. title(layout))
    local head = add(tvb, branch, layout, at, sizes[layout])
    if layout == "segment" then
      local inside = {}
      local first = at + sizes.segment
      if math.floor(value(tvb, at, "segment", "flags") / 2) % 2 == 1 and
         length >= sizes.segment + sizes.sums then
        add(tvb, branch, "sums", first, sizes.sums)
        first = first + sizes.sums
      end
      frames(tvb, branch, first, at + length, inside)
      names[#names + 1] = "SEGMENT[" .. table.concat(inside, ", ") .. "]"
    else
      names[#names + 1] = title(layout)
      if length > sizes[layout] then
        head:set_len(length)
        head:add(payload, tvb(at + sizes[layout], length - sizes[layout]))
      end
    end
    at = at + length
  end
  if #names > 0 then pinfo.cols.info = table.concat(names, " ") end
  return total
end

-- Ports are whichever were free: a lane is known by its first bytes.
ringrail:register_heuristic("tcp", function(tvb, pinfo, tree)
  local length = math.min(tvb:len(), #MAGIC)
  if length < 4 or tvb(0, length):raw() ~= string.sub(MAGIC, 1, length) then return false end
  pinfo.conversation = ringrail
  ringrail.dissector(tvb, pinfo, tree)
  return true
end)

-- ---- Datagrams ----

-- Where the parts of a packet begin; nil when it is none.
local function packet_parts(tvb)
  local stop = tvb:len() - TAG_BYTES
  if stop < sizes.packet or value(tvb, 0, "packet", "kind") ~= PACKET_KIND then return nil end
  local flags = value(tvb, 0, "packet", "flags")
  local elicits = has(flags, PACKET_ELICITS)
  if flags > PACKET_FLAGS_MAX then return nil end
  if not elicits and (has(flags, PACKET_ACK_NOW) or has(flags, PACKET_PROBE)) then return nil end
  local parts = { windows = {}, stop = stop, is_probe = has(flags, PACKET_PROBE) }
  local at = sizes.packet
  if has(flags, PACKET_FLOOR) then
    parts.floor, at = at, at + sizes.floor
  end
  if has(flags, PACKET_ACK) then
    if at + sizes.ack > stop then return nil end
    parts.ack = at
    local windows = value(tvb, at, "ack", "windows")
    at = at + sizes.ack
    for _ = 1, windows do
      if at + sizes.ack_window > stop then return nil end
      local length = sizes.ack_window + 8 * value(tvb, at, "ack_window", "words")
      parts.windows[#parts.windows + 1] = { at = at, length = length }
      at = at + length
    end
  end
  if at > stop or (at < stop and not elicits) then return nil end
  parts.content = at
  return parts
end

-- Whether the content is none, padding, or one whole segment.
local function is_whole(tvb, parts)
  local length = parts.stop - parts.content
  if length == 0 or parts.is_probe then return true end
  return length >= sizes.segment and value(tvb, parts.content, "segment", "length") == length
end

local datagram = Proto("ringrail_datagram", "ringrail datagram")

function datagram.dissector(tvb, pinfo, tree)
  local parts = packet_parts(tvb)
  if not parts then return 0 end
  pinfo.cols.protocol = "ringrail"
  local branch = tree:add(ringrail, tvb(), "ringrail PACKET")
  add(tvb, branch, "packet", 0, sizes.packet)
  local names = { "PACKET " .. value(tvb, 0, "packet", "number") }
  if parts.floor then add(tvb, branch, "floor", parts.floor, sizes.floor) end
  if parts.ack then
    local ack = add(tvb, branch, "ack", parts.ack, sizes.ack)
    for _, window in ipairs(parts.windows) do
      local inside = add(tvb, ack, "ack_window", window.at, sizes.ack_window)
      inside:set_len(window.length)
      local bits = window.length - sizes.ack_window
      if bits > 0 then inside:add(words, tvb(window.at + sizes.ack_window, bits)) end
    end
    names[#names + 1] = "ACK"
  end
  if parts.is_probe then
    names[#names + 1] = "PROBE"
  elseif parts.content < parts.stop then
    if is_whole(tvb, parts) then
      local inside = {}
      add(tvb, branch, "segment", parts.content, sizes.segment)
      frames(tvb, branch, parts.content + sizes.segment, parts.stop, inside)
      names[#names + 1] = "SEGMENT[" .. table.concat(inside, ", ") .. "]"
    else
      branch:add_proto_expert_info(bad, "the content is not one whole segment")
    end
  end
  branch:add(packet_tag, tvb(parts.stop, TAG_BYTES))
  pinfo.cols.info = table.concat(names, " ")
  return tvb:len()
end

datagram:register_heuristic("udp", function(tvb, pinfo, tree)
  local parts = packet_parts(tvb)
  if not parts or not is_whole(tvb, parts) then return false end
  datagram.dissector(tvb, pinfo, tree)
  return true
end)
DissectorTable.get("udp.port"):add_for_decode_as(datagram)
