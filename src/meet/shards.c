/* SPDX-License-Identifier: Apache-2.0 */
#include "meet/shards.h"

#define FEW_SLOTS 16u /* below it a lane can't tell loss by the order of what comes */

/* ---- where they are ---- */

static sml_status add_place(const char *text, size_t num_bytes, struct sml_shard_places *places) {
  if (places->num_shards == SML_MAX_SHARDS)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "more than %u aggregators are listed", SML_MAX_SHARDS);
  struct sml_shard_place *place = &places->shards[places->num_shards];
  char error[SML_ERROR_DETAIL_BYTES / 2];
  if (num_bytes == 0)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "the list of aggregators has an empty place: write host:port,...");
  if (num_bytes >= sizeof place->text)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "aggregator '%.80s': the name is too long", text);
  *place = (struct sml_shard_place){.num_addrs = 1, .process_rank = SML_NO_PROCESS_RANK};
  memcpy(place->text, text, num_bytes);
  if (!sml_addr_parse(place->text, 0, &place->addrs[0], error, sizeof error))
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "aggregator '%.80s': %s", place->text, error);
  if (sml_addr_port(&place->addrs[0]) == 0)
    return sml_fail(SML_ERR_INVALID_ARGUMENT, "aggregator '%.80s': port 0 is no address", place->text);
  for (uint32_t i = 0; i < places->num_shards; i++) {
    const struct sml_shard_place *other = &places->shards[i];
    if (sml_addr_equal(&other->addrs[0], &place->addrs[0]))
      return sml_fail(SML_ERR_INVALID_ARGUMENT, "aggregator '%.80s' is listed twice", place->text);
    if (other->addrs[0].num_bytes != place->addrs[0].num_bytes)
      return sml_fail(SML_ERR_INVALID_ARGUMENT,
                      "aggregators '%.80s' and '%.80s': one is an IPv4 address and one IPv6: list one kind",
                      other->text, place->text);
  }
  places->num_shards++;
  return SML_OK;
}

sml_status sml_shards_parse(const char *text, struct sml_shard_places *places) {
  places->num_shards = 0;
  for (;;) {
    const size_t num_bytes = strcspn(text, ",");
    const sml_status status = add_place(text, num_bytes, places);
    if (status != SML_OK || text[num_bytes] == 0) return status;
    text += num_bytes + 1;
  }
}

/* ---- how they are joined ---- */

uint32_t sml_shards_num_slots(uint32_t num_slots, uint32_t num_shards) {
  uint32_t share = num_slots;
  while (share > FEW_SLOTS && share * num_shards > num_slots) share /= 2;
  return share;
}
