/* SPDX-License-Identifier: Apache-2.0
 * Where hosts are, as an ordinary switch learns it: by which device a MAC address was heard last. Pure. As v1model.p4
 * does it by itself:
 *   a host is known for five minutes after it was heard;
 *   it is at another device when it is heard there after a second of silence;
 *   before that, what would be flooded has gone round, over two links to one switch, and is dropped.
 * Hosts of running jobs have entries of the program's table l2, which come first. */
#pragma once

#include "base/base.h"

#define SML_NUM_STATIONS 4096u /* a power of two */
#define SML_NO_STATION UINT32_MAX

struct sml_station {
  uint64_t mac, heard_ns; /* mac 0: free */
  uint32_t device;
};
#define SML_STATION_DEVICES 256u
struct sml_stations {
  struct sml_station all[SML_NUM_STATIONS];
  struct {
    uint64_t heard_ns; /* 0: never */
    uint32_t device;
  } twins[SML_STATION_DEVICES]; /* by which device a host was known whose frames came by this one, too */
};

/* The frame has 14 bytes at least. */
uint64_t sml_stations_source(const uint8_t *frame);
uint64_t sml_stations_target(const uint8_t *frame);
/* A frame from there came by the device. False: what is to be flooded of it has gone round. */
bool sml_stations_hear(struct sml_stations *s, uint64_t mac, uint32_t device, uint64_t now_ns);
/* What came by a device shall not be flooded by another one that leads to the same place. note: a frame came by the
 * device of a host that is known by another one. */
void sml_stations_note_round(struct sml_stations *s, uint32_t device, uint32_t known_by, uint64_t now_ns);
bool sml_stations_goes_round(const struct sml_stations *s, uint32_t came_by, uint32_t device, uint64_t now_ns);
/* The device, or SML_NO_STATION. */
uint32_t sml_stations_find(const struct sml_stations *s, uint64_t mac, uint64_t now_ns);
