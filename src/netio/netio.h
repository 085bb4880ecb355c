/* SPDX-License-Identifier: Apache-2.0
 * Packet back ends behind one table. An engine thread owns one sml_netio; only wake() may be called
 * from other threads. A frame is one datagram payload. Sends are bursts of equal frames (the last
 * may be shorter) to one or several peers, because segmentation offload is what makes sockets fast.
 * A frame that cannot be sent (queue full, peer unreachable) is lost and counted: the protocol
 * repeats it. */
#pragma once

#include "base/base.h"

/* A transport address, comparable with sml_addr_equal. For udp: the sockaddr, port included, unused
 * bytes zero. For mem: family 0xffff and the port number. */
struct sml_addr {
  uint8_t bytes[28]; /* sockaddr_in or sockaddr_in6 */
  uint8_t num_bytes;
};
static inline bool sml_addr_equal(const struct sml_addr *a, const struct sml_addr *b) {
  return a->num_bytes == b->num_bytes && memcmp(a->bytes, b->bytes, a->num_bytes) == 0;
}

struct sml_rx_frame {
  const uint8_t *data; /* valid until the next rx_burst */
  uint32_t num_bytes;
  const struct sml_addr *from; /* valid until the next rx_burst */
  bool is_marked;              /* a queue on its way was long: ECN's Congestion Experienced (RFC 3168) */
};

#define SML_NETIO_BURST_FRAMES 64u

/* A burst being filled: num_frames frames at data + i * frame_bytes. */
struct sml_tx_burst {
  uint8_t *data;
  uint32_t frame_bytes;
  uint32_t max_frames; /* room; 1 .. SML_NETIO_BURST_FRAMES */
  bool goes_apart;     /* the owner's wish: as plain datagrams, since a segmented send may be lost as one */
  /* For each frame 1 + the index of the one peer of the commit that does not get it; 0: all get it. Frames that the
   * same peer does not get lie behind each other. */
  uint16_t not_for[SML_NETIO_BURST_FRAMES];
};
static inline bool sml_tx_is_for(const struct sml_tx_burst *burst, uint32_t frame, size_t peer) {
  return burst->not_for[frame] != peer + 1;
}

struct sml_netio_stats {
  uint64_t rx_frames, rx_bytes, tx_frames, tx_bytes; /* datagram payload bytes */
  uint64_t tx_lost_frames;                           /* the system would not take them */
  int32_t tx_error; /* why it would not take the last of them: an errno; 0: it took all. Where to, and when: */
  struct sml_addr tx_error_to;
  uint64_t tx_error_ns; /* CLOCK_MONOTONIC */
  uint64_t rx_truncated_frames;
  uint64_t system_calls; /* of this back end's data path, waits included */
};

struct sml_netio {
  const struct sml_netio_ops *ops;
  struct sml_netio_stats stats; /* written by the engine thread only */
  /* The owner's wish for its next waits: frames do not end one before this time, so that many are received
   * by one call. 0: the first frame does. Time-outs and wake() always do. A back end may ignore it. */
  uint64_t gather_ns;
  uint32_t max_frame_bytes; /* largest frame that may be reserved */
  bool has_segmentation_offload;
  uint64_t rx_buffer_bytes; /* frames, and what is around each, that may wait before more are lost; 0: not known */
};

struct sml_netio_ops {
  const char *name;
  void (*close)(struct sml_netio *io);
  /* For a child of fork(), whose copy is not used again: frees and writes nothing. NULL: there are none. */
  void (*close_descriptors)(struct sml_netio *io);
  /* The local address peers send to. */
  void (*local_addr)(struct sml_netio *io, struct sml_addr *addr_out);
  /* Frames that are ready now, up to max; never blocks. The frames of the call before are released. */
  size_t (*rx_burst)(struct sml_netio *io, struct sml_rx_frame *frames, size_t max);
  /* Lends room for a burst of frames of frame_bytes (1 .. max_frame_bytes). Always gives at least one
   * frame, but none (max_frames 0) for another size. One burst at a time: a later reserve discards one
   * that was not committed. */
  void (*tx_reserve)(struct sml_netio *io, uint32_t frame_bytes, struct sml_tx_burst *burst_out);
  /* Queues the first num_frames frames of the burst for each peer, but for what is not for it; the last frame has
   * last_bytes (1 .. frame_bytes). No frames: it does nothing. `peers` must stay as it is until the tx_flush. */
  void (*tx_commit)(struct sml_netio *io, struct sml_tx_burst *burst, uint32_t num_frames, uint32_t last_bytes,
                    const struct sml_addr *peers, size_t num_peers);
  /* Sends what is queued, with as few system calls as possible. To be called before wait(); a tx_reserve
   * that finds no room does it too. Stats count frames when they are sent. */
  void (*tx_flush)(struct sml_netio *io);
  /* Sleeps until a frame may be ready, wake() was called, or timeout_ns passed (SML_NEVER: no limit). */
  void (*wait)(struct sml_netio *io, uint64_t timeout_ns);
  void (*wake)(struct sml_netio *io); /* any thread; sticky until the next wait returns */
  /* From now on also receives what is sent to the multicast group, on the interface that leads to `via` (an address of
   * the one who sends it). 0, or -errno: ENOBUFS when SML_NETIO_MAX_GROUPS are joined. leave_group() ends one join. */
  int (*join_group)(struct sml_netio *io, const struct sml_addr *group, const struct sml_addr *via);
  void (*leave_group)(struct sml_netio *io, const struct sml_addr *group);
  /* Bytes of flushed frames, about, that have not left this host yet: one system call. NULL, or 0: they do not wait. */
  uint64_t (*tx_waiting)(struct sml_netio *io);
  /* Asks for rx_buffer_bytes of at least so many; the system may give less. NULL: it is as it is. */
  void (*hold)(struct sml_netio *io, uint64_t num_bytes);
};
#define SML_NETIO_MAX_GROUPS 4u

/* udp: kernel sockets, UDP_SEGMENT and UDP_GRO when the kernel has both (probed at open),
 * sendmmsg/recvmmsg of plain datagrams otherwise. Don't-fragment is set. */
struct sml_udp_options {
  const struct sml_addr *bind_addr; /* with port 0: any free port */
  /* Asked for with SO_RCVBUFFORCE, then SO_RCVBUF, and as much for sending. 0: the system's default. */
  uint32_t rx_buffer_bytes;
  bool no_offload; /* force the plain-datagram path */
  bool no_ecn;     /* datagrams do not say that they may be marked instead of lost: nobody would react */
  /* A wait polls the network device for a while before it sleeps (SO_BUSY_POLL), where driver and system let it. */
  bool polls_device;
  /* For those who send to groups: 1 + how many routers a datagram may pass (0: this one does not), and the
   * interface's index (0: that of bind_addr, or as routes say). */
  uint32_t multicast_interface;
  uint8_t multicast_ttl;
};
/* 0, or -errno with a sentence in error_out[error_bytes]. */
int sml_udp_open(const struct sml_udp_options *options, struct sml_netio **io_out, char *error_out, size_t error_bytes);
size_t sml_udp_memsize(void); /* of one of them */

/* mem: ports of one in-process hub that carry the same encoded bytes; thread safe. */
struct sml_mem_hub;
/* A group of the hub: number < SML_MEM_GROUPS. What is sent to it goes to every port that joined. */
#define SML_MEM_GROUPS 64u
void sml_mem_group(uint32_t number, struct sml_addr *addr_out);
struct sml_mem_hub *sml_mem_hub_create(void);
void sml_mem_hub_destroy(struct sml_mem_hub *hub); /* after its ports are closed */
/* NULL when out of memory. queue_frames bounds the receive queue, frames lent by rx_burst included: a
 * frame beyond it is lost, and counted by its sender. */
struct sml_netio *sml_mem_open(struct sml_mem_hub *hub, uint32_t queue_frames, uint32_t max_frame_bytes);

/* faults: wraps any back end and loses, duplicates, reorders, corrupts or marks received frames, drawn a
 * frame and receiver from a seed. Owns and closes `inner`. */
struct sml_fault_options {
  double loss, duplicate, reorder, corrupt, mark; /* probability per received frame, 0..1 */
  /* A reordered frame is held back by up to this many later ones, or until two empty bursts in a row.
   * 0: 16. At most 1024. */
  uint32_t reorder_frames;
  uint32_t loss_burst_frames; /* frames are lost so many in a row, the same share of them. 0: 1. At most 1024. */
  uint64_t seed;
  /* If set, decides loss alone, before `loss`: true drops the frame (targeted tests). */
  bool (*drop)(void *user, const uint8_t *data, uint32_t num_bytes);
  void *drop_user;
};
/* NULL when out of memory (then inner is not closed). */
struct sml_netio *sml_faults_wrap(struct sml_netio *inner, const struct sml_fault_options *options);
/* Reads "loss=0.01,duplicate=0.01,reorder=0.05,corrupt=0,seed=7" (SWITCHML_FAULTS), also reorder_frames,
 * burst, mark.
 * False: error_out says what is wrong. An empty or NULL text gives all zero. */
bool sml_faults_parse(const char *text, struct sml_fault_options *options_out, char *error_out, size_t error_bytes);
bool sml_faults_any(const struct sml_fault_options *options);

/* pcap: wraps any back end and writes what its owner sends and receives to a file in pcapng, for Wireshark
 * (tools/dissector). Owns and closes `inner`. A file that can't be written, or is full, ends the capture alone. */
struct sml_pcap_options {
  const char *path;
  uint32_t lane;       /* lanes after the first have it in the file's name: x-lane1.pcapng */
  bool is_shared_name; /* several processes were given it: x-PID.pcapng, x-PID-1.pcapng ...; none is overwritten */
  uint64_t max_bytes;  /* of the file; 0: 256 MiB */
  void (*warn)(void *user, const char *text); /* once, on the engine's thread; may be NULL */
  void *user;
};
/* 0, or -errno with a sentence (then inner is not closed). */
int sml_pcap_wrap(struct sml_netio *inner, const struct sml_pcap_options *options, struct sml_netio **io_out,
                  char *error_out, size_t error_bytes);

/* An address of this host and what is known of its interface. */
#define SML_MAX_LINKS 32u
struct sml_link {
  char name[16], address[48]; /* "eth0"; without a port, as in "192.0.2.1" or "2001:db8::1" */
  uint32_t mtu, mbps;         /* 0: not known, as the speed of most virtual devices */
  bool is_loopback;
};
/* Those that are up, at most `room`; each address by itself. Returns how many. */
uint32_t sml_links_list(struct sml_link *links_out, uint32_t room);

/* "host:port", "[v6]:port" or a bare host with default_port (0: a port is required) to an address.
 * Resolves names (may block), to IPv4 where a name has both. False: error_out has the reason. */
bool sml_addr_parse(const char *text, uint16_t default_port, struct sml_addr *addr_out, char *error_out,
                    size_t error_bytes);
/* As sml_addr_parse, but looks nothing up: a name gives the empty address, an interface's name no scope. */
bool sml_addr_check(const char *text, uint16_t default_port, struct sml_addr *addr_out, char *error_out,
                    size_t error_bytes);
/* "192.0.2.1:48879" (IPv4 in IPv6, too), "[::1]:48879", "mem:3"; writes at most text_bytes, always terminated. */
void sml_addr_format(const struct sml_addr *addr, char *text, size_t text_bytes);
uint16_t sml_addr_port(const struct sml_addr *addr);
void sml_addr_set_port(struct sml_addr *addr, uint16_t port);
/* A number for the host: of its IPv4 address, however that is written, or of its IPv6 /64, in which a host may change
 * its address; each port of mem is a host. 0: none of these, or an address that never comes from another host
 * (loopback). */
uint64_t sml_addr_host(const struct sml_addr *addr);

/* Multicast groups, as an aggregator's operator gives them and as control messages carry them. A range of groups
 * begins with that of job 0; lane l of a job uses the range's port + l. */
#define SML_MULTICAST_DEFAULT_PORT 28879u /* below the ports that systems give by themselves */
#define SML_MULTICAST_DEFAULT_GROUPS 64u

struct sml_multicast {
  struct sml_addr first; /* of job 0 and lane 0; num_bytes 0: there is none */
  uint32_t num_groups;   /* jobs from there on have none */
  uint32_t interface;    /* its index; 0: as routes say */
  uint8_t ttl;           /* 1: not beyond the next router */
};
/* "GROUP[/COUNT]" or "GROUP:PORT[/COUNT]", IPv6 groups with a port as "[GROUP]:PORT". Sets `first` and num_groups.
 * Names are no groups. False: error_out says what is wrong. */
bool sml_multicast_parse(const char *text, struct sml_multicast *multicast_out, char *error_out, size_t error_bytes);
bool sml_multicast_is_group(const struct sml_addr *addr);

/* As messages have it: 128 bits in two words, IPv4 mapped into IPv6. Adding a job's number to the second word gives
 * the job's group. _from_words: false if it is no group. */
void sml_multicast_to_words(const struct sml_addr *group, uint64_t words_out[2]);
bool sml_multicast_from_words(const uint64_t words[2], uint16_t port, struct sml_addr *group_out);
/* The group of a job's lane; false: it has none. */
bool sml_multicast_group(const struct sml_multicast *multicast, uint32_t job, uint32_t lane,
                         struct sml_addr *group_out);

/* The index of an interface by its name or an address it has. */
bool sml_multicast_find_interface(const char *text, uint32_t *index_out);
/* The index of the interface that has the address; 0: none. */
uint32_t sml_multicast_interface_of(const struct sml_addr *addr);

/* For a control connection: the kernel must not give it up before its lease is over; by itself it does after some 15
 * minutes without an answer. And while little is under way it repeats soon: a link that is back is used at once, not
 * when a pause is over that doubled while it was down. lease_ns 0: as any other connection. */
void sml_tcp_outlast(int fd, uint64_t lease_ns);
