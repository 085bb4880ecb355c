/* SPDX-License-Identifier: Apache-2.0 */
#include <inttypes.h>

#include "cli/conform/conform.h"

#define CRC_OFFSET 28u
#define MAC_OFFSET CRC_OFFSET /* of KEYED packets, in its place */

const char *const sml_conform_field_names[SML_NUM_FIELDS] = {"version", "type", "wire",          "reducer", "job",
                                                             "epoch",   "rank", "payload_bytes", "slot",    "flags",
                                                             "phase",   "tag",  "chunk",         "bytes"};
const char *const sml_conform_type_names[8] = {NULL, "UPDATE", "RESULT", "PENDING", "ERROR", "HELLO", "ABORT", "PROBE"};
const char *const sml_conform_flag_names[8] = {"RETRANSMISSION", "KEYED",  "CHECKED", "BY_GRANT",
                                               "UNASKED",        "MARKED", "DEAF",    "NARROW"};
const char *const sml_conform_symbol_names[10] = {"",        "slots",  "ranks", "full",      "max",
                                                  "unknown", "narrow", "owner", "to_owners", "copies"};
const char *const sml_conform_need_names[SML_NUM_NEEDS] = {"key",        "no_key", "first_phase",
                                                           "membership", "narrow", "one_way"};

static uint32_t full_bytes(const struct sml_conform_binding *b) {
  return b->chunk_bytes + (b->is_checked ? SML_CHECK_BYTES : 0);
}

int64_t sml_conform_resolve(struct sml_conform_value v, const struct sml_conform_binding *b) {
  switch (v.symbol) {
    case SML_SYMBOL_SLOTS: return v.number + b->num_slots;
    case SML_SYMBOL_RANKS: return v.number + b->world_size;
    case SML_SYMBOL_FULL: return v.number + full_bytes(b);
    case SML_SYMBOL_NARROW: return v.number + sml_narrow_bytes(b->chunk_bytes);
    case SML_SYMBOL_MAX: return v.number + UINT32_MAX;
    case SML_SYMBOL_UNKNOWN: return v.number + SML_CONFORM_UNKNOWN_JOB;
    case SML_SYMBOL_TO_OWNERS: return v.number + sml_window_base(SML_REDUCE_TO_OWNER, b->num_slots);
    case SML_SYMBOL_COPIES: return v.number + sml_window_base(SML_REDUCE_COPY, b->num_slots);
    case SML_SYMBOL_OWNER:
    case SML_SYMBOL_NONE: break;
  }
  return v.number;
}

/* What is in the header, with the field's base added. */
static uint32_t number_of(const struct sml_conform_packet *p, enum sml_conform_field field,
                          const struct sml_conform_binding *b) {
  const bool is_given = p->given >> field & 1u, is_max = p->fields[field].symbol == SML_SYMBOL_MAX;
  const bool is_owner = p->fields[field].symbol == SML_SYMBOL_OWNER;
  const int64_t number = is_given ? sml_conform_resolve(p->fields[field], b) : 0;
  switch (field) {
    case SML_FIELD_VERSION: return is_given ? (uint32_t)number : SML_WIRE_VERSION;
    case SML_FIELD_JOB: return is_given && p->fields[field].symbol == SML_SYMBOL_UNKNOWN ? (uint32_t)number : b->job;
    case SML_FIELD_EPOCH: return b->epoch + (uint32_t)number;
    case SML_FIELD_RANK: return is_given ? (uint32_t)number : p->socket;
    case SML_FIELD_SLOT: return (uint16_t)(b->slot_base + number);
    case SML_FIELD_PHASE: return (uint32_t)number + (is_max ? 0 : b->first_phase);
    case SML_FIELD_CHUNK: return (uint32_t)number + (is_max || is_owner ? 0 : b->first_chunk);
    default: return (uint32_t)number;
  }
}

static uint32_t element_bytes(uint32_t wire) {
  return wire == SML_LANES_UINT8 ? 1 : 4;
}

static uint32_t payload_bytes_of(const struct sml_conform_packet *p, const struct sml_conform_binding *b,
                                 uint32_t wire) {
  if (p->given >> SML_FIELD_BYTES & 1u) return (uint32_t)sml_conform_resolve(p->fields[SML_FIELD_BYTES], b);
  if (p->has_nonce) return 16;
  return p->num_values * element_bytes(wire);
}

static uint8_t payload_byte(const struct sml_conform_packet *p, uint32_t wire, uint32_t i) {
  if (p->num_values == 0) return 0;
  if (wire == SML_LANES_UINT8) return (uint8_t)p->values[i % p->num_values];
  return (uint8_t)(p->values[i / 4 % p->num_values] >> (24 - 8 * (i % 4)));
}

static bool is_keyed_frame(const uint8_t *frame) {
  return (sml_load_be16(frame + 14) & SML_FLAG_KEYED) != 0;
}

/* The CRC of a frame, whatever its header says. */
static uint32_t crc_of(const uint8_t *frame, uint32_t num_bytes) {
  uint8_t header[SML_HEADER_BYTES] = {0};
  memcpy(header, frame, CRC_OFFSET);
  return sml_crc32c(sml_crc32c(0, header, sizeof header), frame + SML_HEADER_BYTES, num_bytes - SML_HEADER_BYTES);
}

/* Switches make no checksums; HELLO and ERROR are the work of software in any job. */
static uint32_t right_crc(const struct sml_conform_binding *b, const uint8_t *frame, uint32_t num_bytes) {
  const uint8_t type = frame[0] & 15;
  const bool is_switch = b->is_switch && type != SML_PACKET_HELLO && type != SML_PACKET_ERROR;
  return is_switch ? 0 : crc_of(frame, num_bytes) ^ b->seal.mask;
}

static void spoil(const struct sml_conform_packet *p, const struct sml_conform_binding *b, uint8_t *frame,
                  uint32_t num_bytes) {
  const uint32_t version = number_of(p, SML_FIELD_VERSION, b);
  frame[0] = (uint8_t)(version << 4 | (frame[0] & 15));
  if (p->given >> SML_FIELD_PAYLOAD_BYTES & 1u)
    sml_store_be16(frame + 10, (uint16_t)number_of(p, SML_FIELD_PAYLOAD_BYTES, b));
  if (p->is_mac_wrong) frame[MAC_OFFSET] ^= 1;
  if (!is_keyed_frame(frame)) sml_store_be32(frame + CRC_OFFSET, right_crc(b, frame, num_bytes));
  if (p->is_crc_wrong) frame[CRC_OFFSET] ^= 1;
}

uint32_t sml_conform_pack(const struct sml_conform_packet *p, const struct sml_conform_binding *b, uint8_t *frame) {
  static const struct sml_seal none = {.mask = 0};
  static const struct sml_seal other = {.is_keyed = true, .key = {0x6f74686572206b65, 0x7920f00d}};
  const uint32_t wire = number_of(p, SML_FIELD_WIRE, b);
  const uint32_t payload_bytes = payload_bytes_of(p, b, wire);
  const struct sml_seal *seal = p->is_key_other ? &other : b->seal.is_keyed && p->is_key_missing ? &none : &b->seal;
  const uint32_t head_bytes = sml_head_bytes(seal->is_keyed), frame_bytes = head_bytes + payload_bytes;
  if (payload_bytes > SML_CONFORM_MAX_FRAME_BYTES) return 0;
  if (frame_bytes > SML_CONFORM_MAX_FRAME_BYTES - p->extra_bytes || p->cut_bytes > frame_bytes) return 0;
  memset(frame, 0, frame_bytes + p->extra_bytes);
  for (uint32_t i = 0; i < payload_bytes; i++) frame[head_bytes + i] = payload_byte(p, wire, i);
  if (p->has_nonce && payload_bytes >= 8)
    sml_store_be64(frame + head_bytes,
                   b->nonces[number_of(p, SML_FIELD_RANK, b) % SML_CONFORM_MAX_RANKS] + (uint64_t)p->nonce);
  const struct sml_header h = {.type = (uint8_t)number_of(p, SML_FIELD_TYPE, b),
                               .wire = (uint8_t)wire,
                               .reducer = (uint8_t)number_of(p, SML_FIELD_REDUCER, b),
                               .job = (uint16_t)number_of(p, SML_FIELD_JOB, b),
                               .epoch = number_of(p, SML_FIELD_EPOCH, b),
                               .rank = (uint16_t)number_of(p, SML_FIELD_RANK, b),
                               .payload_bytes = (uint16_t)payload_bytes,
                               .slot = (uint16_t)number_of(p, SML_FIELD_SLOT, b),
                               .flags = (uint16_t)number_of(p, SML_FIELD_FLAGS, b),
                               .phase = number_of(p, SML_FIELD_PHASE, b),
                               .tag = number_of(p, SML_FIELD_TAG, b),
                               .chunk = number_of(p, SML_FIELD_CHUNK, b)};
  sml_wire_seal(frame, &h, seal);
  spoil(p, b, frame, frame_bytes);
  return frame_bytes + p->extra_bytes - p->cut_bytes;
}

/* ---- what comes ---- */

static char difference[400];

static uint32_t header_number(const uint8_t *f, enum sml_conform_field field) {
  switch (field) {
    case SML_FIELD_VERSION: return f[0] >> 4;
    case SML_FIELD_TYPE: return f[0] & 15u;
    case SML_FIELD_WIRE: return f[1] >> 4;
    case SML_FIELD_REDUCER: return f[1] & 15u;
    case SML_FIELD_JOB: return sml_load_be16(f + 2);
    case SML_FIELD_EPOCH: return sml_load_be32(f + 4);
    case SML_FIELD_RANK: return sml_load_be16(f + 8);
    case SML_FIELD_PAYLOAD_BYTES: return sml_load_be16(f + 10);
    case SML_FIELD_SLOT: return sml_load_be16(f + 12);
    case SML_FIELD_FLAGS: return sml_load_be16(f + 14);
    case SML_FIELD_PHASE: return sml_load_be32(f + 16);
    case SML_FIELD_TAG: return sml_load_be32(f + 20);
    case SML_FIELD_CHUNK: return sml_load_be32(f + 24);
    default: return 0;
  }
}

/* NULL: well-formed, and sealed as packets of the job are. */
static const char *check_seal(const struct sml_conform_packet *e, const struct sml_conform_binding *b,
                              const uint8_t *frame, uint32_t num_bytes) {
  if (num_bytes < SML_HEADER_BYTES) return "is shorter than a header";
  const bool is_keyed = is_keyed_frame(frame);
  const bool is_due = b->seal.is_keyed && e->fields[SML_FIELD_TYPE].number != SML_PACKET_ERROR;
  if (num_bytes != sml_head_bytes(is_keyed) + sml_load_be16(frame + 10)) return "is not as long as its header says";
  const uint32_t crc = sml_load_be32(frame + CRC_OFFSET);
  if (is_keyed != is_due) return is_keyed ? "is KEYED" : "is not KEYED";
  if (!is_keyed && crc != right_crc(b, frame, num_bytes)) return "has a wrong checksum";
  const struct sml_header h = {.flags = SML_FLAG_KEYED,
                               .payload_bytes = (uint16_t)header_number(frame, SML_FIELD_PAYLOAD_BYTES)};
  if (is_keyed && !sml_wire_is_authentic(frame, &h, &b->seal)) return "has a wrong mac";
  return NULL;
}

static const char *compare_missing(const struct sml_conform_packet *e, const struct sml_conform_binding *b,
                                   const uint8_t *payload, uint32_t payload_bytes) {
  const uint32_t bitmap_bytes = b->is_switch ? 4 : (uint32_t)sml_div_ceil(b->world_size, 8);
  if (payload_bytes != bitmap_bytes) {
    snprintf(difference, sizeof difference, "bitmap has %u bytes, not %u", payload_bytes, bitmap_bytes);
    return difference;
  }
  uint64_t missing = 0;
  for (uint32_t i = 0; i < payload_bytes; i++) missing |= (uint64_t)payload[i] << (8 * i);
  if (missing == e->missing) return NULL;
  snprintf(difference, sizeof difference, "missing ranks are %" PRIx64 ", not %" PRIx64 " (bits)", missing, e->missing);
  return difference;
}

static const char *compare_payload(const struct sml_conform_packet *e, const struct sml_conform_binding *b,
                                   uint32_t rank, const uint8_t *payload, uint32_t payload_bytes, uint32_t wire) {
  const uint32_t expected_bytes = payload_bytes_of(e, b, wire);
  if (e->has_missing) return compare_missing(e, b, payload, payload_bytes);
  if (payload_bytes != expected_bytes) {
    snprintf(difference, sizeof difference, "payload has %u bytes, not %u", payload_bytes, expected_bytes);
    return difference;
  }
  if (e->has_nonce && sml_load_be64(payload) != b->nonces[rank % SML_CONFORM_MAX_RANKS] + (uint64_t)e->nonce)
    return "nonce is not what was sent";
  for (uint32_t i = e->has_nonce ? 8 : 0; i < payload_bytes; i++) {
    if (payload[i] == payload_byte(e, wire, i)) continue;
    const uint32_t size = element_bytes(wire), at = i / size;
    uint32_t value = 0;
    for (uint32_t k = 0; k < size && at * size + k < payload_bytes; k++) value = value << 8 | payload[at * size + k];
    snprintf(difference, sizeof difference, "element %u is %u (0x%x), not %u", at, value, value,
             e->num_values > 0 ? e->values[at % e->num_values] : 0);
    return difference;
  }
  return NULL;
}

const char *sml_conform_compare(const struct sml_conform_packet *e, const struct sml_conform_binding *b, uint32_t rank,
                                const uint8_t *frame, uint32_t num_bytes) {
  const char *wrong = check_seal(e, b, frame, num_bytes);
  if (wrong) return wrong;
  struct sml_conform_packet at_rank = *e;
  at_rank.given |= 1u << SML_FIELD_VERSION | 1u << SML_FIELD_JOB | 1u << SML_FIELD_EPOCH;
  at_rank.fields[SML_FIELD_VERSION] = (struct sml_conform_value){.number = SML_WIRE_VERSION};
  for (uint32_t field = 0; field < SML_FIELD_BYTES; field++) {
    if (!(at_rank.given >> field & 1u)) continue;
    uint32_t seen = header_number(frame, (enum sml_conform_field)field);
    if (field == SML_FIELD_FLAGS) seen &= ~(uint32_t)SML_FLAG_KEYED;
    const uint32_t expected = number_of(&at_rank, (enum sml_conform_field)field, b);
    if (seen == expected) continue;
    snprintf(difference, sizeof difference, "%s is %u (0x%x), not %u (0x%x)", sml_conform_field_names[field], seen,
             seen, expected, expected);
    return difference;
  }
  const uint32_t head_bytes = sml_head_bytes(is_keyed_frame(frame));
  return compare_payload(e, b, rank, frame + head_bytes, num_bytes - head_bytes, header_number(frame, SML_FIELD_WIRE));
}

bool sml_conform_is_hint(const uint8_t *frame, uint32_t num_bytes) {
  return num_bytes >= SML_HEADER_BYTES && (frame[0] & 15) == SML_PACKET_PENDING &&
         (sml_load_be16(frame + 14) & (SML_FLAG_UNASKED | SML_FLAG_MARKED)) != 0;
}

void sml_conform_describe(const uint8_t *f, uint32_t num_bytes, char *text, size_t text_bytes) {
  if (num_bytes < SML_HEADER_BYTES) {
    snprintf(text, text_bytes, "%u bytes", num_bytes);
    return;
  }
  const uint32_t type = header_number(f, SML_FIELD_TYPE);
  const char *name = type < SML_ARRAY_LEN(sml_conform_type_names) ? sml_conform_type_names[type] : NULL;
  int used = snprintf(text, text_bytes, "%s", name ? name : "a packet");
  for (uint32_t field = 0; field < SML_FIELD_BYTES && used >= 0 && (size_t)used < text_bytes; field++)
    if (field != SML_FIELD_TYPE || !name)
      used += snprintf(text + used, text_bytes - (size_t)used,
                       field == SML_FIELD_TAG || field == SML_FIELD_EPOCH ? " %s=0x%x" : " %s=%u",
                       sml_conform_field_names[field], header_number(f, (enum sml_conform_field)field));
  const uint32_t head_bytes = sml_head_bytes(is_keyed_frame(f));
  for (uint32_t i = head_bytes; i < num_bytes && i < head_bytes + 12 && used >= 0 && (size_t)used < text_bytes; i++)
    used += snprintf(text + used, text_bytes - (size_t)used, "%s%02x",
                     i == head_bytes ? " payload="
                     : i % 4 == 0    ? " "
                                     : "",
                     f[i]);
}
