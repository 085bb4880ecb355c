/* SPDX-License-Identifier: Apache-2.0 */
#include "pipeline/stations.h"

#define STAYS_NS (1 * SML_NS_PER_S)
#define ROUND_NS (SML_NS_PER_S / 2) /* longer than a frame needs to go round, shorter than hosts wait for an answer */
#define FORGETS_NS (300 * SML_NS_PER_S)
#define TRIES 8u /* places where a host may stand */
#define GROUP_BIT (UINT64_C(1) << 40)

static uint64_t load_mac(const uint8_t *bytes) {
  return (uint64_t)sml_load_be32(bytes) << 16 | sml_load_be16(bytes + 4);
}

uint64_t sml_stations_source(const uint8_t *frame) {
  return load_mac(frame + 6);
}

uint64_t sml_stations_target(const uint8_t *frame) {
  return load_mac(frame);
}

static uint32_t place(uint64_t mac, uint32_t try) {
  return (uint32_t)(sml_mix64(mac) + try) & (SML_NUM_STATIONS - 1);
}

/* Who is heard no more makes room; of those who are heard nobody does. */
static struct sml_station *find_or_make(struct sml_stations *s, uint64_t mac, uint64_t now_ns) {
  struct sml_station *unused = NULL;
  for (uint32_t try = 0; try < TRIES; try++) {
    struct sml_station *at = &s->all[place(mac, try)];
    if (at->mac == mac) return at;
    if (!unused && (at->mac == 0 || now_ns - at->heard_ns > FORGETS_NS)) unused = at;
  }
  if (unused) *unused = (struct sml_station){.mac = mac, .device = SML_NO_STATION};
  return unused;
}

bool sml_stations_hear(struct sml_stations *s, uint64_t mac, uint32_t device, uint64_t now_ns) {
  if (mac == 0 || (mac & GROUP_BIT) != 0) return true;
  struct sml_station *at = find_or_make(s, mac, now_ns);
  if (!at) return true;
  if (at->device != SML_NO_STATION && at->device != device && now_ns - at->heard_ns < STAYS_NS) return false;
  at->device = device;
  at->heard_ns = now_ns;
  return true;
}

void sml_stations_note_round(struct sml_stations *s, uint32_t device, uint32_t known_by, uint64_t now_ns) {
  s->twins[device % SML_STATION_DEVICES].heard_ns = now_ns;
  s->twins[device % SML_STATION_DEVICES].device = known_by;
}

bool sml_stations_goes_round(const struct sml_stations *s, uint32_t came_by, uint32_t device, uint64_t now_ns) {
  const uint64_t heard_ns = s->twins[device % SML_STATION_DEVICES].heard_ns;
  return heard_ns != 0 && now_ns - heard_ns < ROUND_NS && s->twins[device % SML_STATION_DEVICES].device == came_by;
}

uint32_t sml_stations_find(const struct sml_stations *s, uint64_t mac, uint64_t now_ns) {
  for (uint32_t try = 0; try < TRIES; try++) {
    const struct sml_station *at = &s->all[place(mac, try)];
    if (at->mac == mac && mac != 0) return now_ns - at->heard_ns > FORGETS_NS ? SML_NO_STATION : at->device;
  }
  return SML_NO_STATION;
}
