/* SPDX-License-Identifier: Apache-2.0
 * A link of the bed that congests and loses like one, for tc (bench/netbed.py compiles and attaches it).
 *
 * `mark`, at the end that sends, ahead of the token bucket: follows how many bytes wait in that bucket by a queue of
 * its own, drained at the link's rate, and sets CE on packets that can carry it when more than mark_bytes wait.
 * `lose`, at the end that receives, behind the bucket, so that what is lost did cross the link: loses what the kernel
 * hands over as one. That is a whole segmented send, not a packet of the protocol: these are bursts. */
#include <linux/bpf.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_helpers.h>

struct settings {
  __u64 rate_bytes;  /* a second; 0: nothing is marked */
  __u64 burst_bytes; /* of the token bucket: what it lets pass at once is not a queue */
  __u64 limit_bytes; /* of the token bucket: it drops what is more, which then does not wait */
  __u64 mark_bytes;
  __u32 loss_per_million;
  __u32 loss_segments; /* goes on losing until so many segments are gone; 0: the one buffer only */
};

struct state {
  struct bpf_spin_lock lock;
  __u32 segments_to_lose;
  __u64 drained_ns;
  __u64 waiting_bytes; /* burst included */
};

struct counters {
  __u64 packets, bytes; /* segments, and their bytes with all headers */
  __u64 marked_packets, markable_packets, lost_packets, lost_buffers;
  __u64 deepest_bytes;
};

struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct settings);
} link_settings SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct state);
} link_state SEC(".maps");
struct {
  __uint(type, BPF_MAP_TYPE_ARRAY);
  __uint(max_entries, 1);
  __type(key, __u32);
  __type(value, struct counters);
} link_counters SEC(".maps");

struct link {
  struct settings *settings;
  struct state *state;
  struct counters *counters;
};

static __always_inline int find_link(struct link *link) {
  const __u32 first = 0;
  link->settings = bpf_map_lookup_elem(&link_settings, &first);
  link->state = bpf_map_lookup_elem(&link_state, &first);
  link->counters = bpf_map_lookup_elem(&link_counters, &first);
  return link->settings && link->state && link->counters;
}

static __always_inline __u32 segments_of(const struct __sk_buff *skb) {
  return skb->gso_segs > 1 ? skb->gso_segs : 1;
}

static __always_inline void count(const struct link *link, const struct __sk_buff *skb) {
  __sync_fetch_and_add(&link->counters->packets, segments_of(skb));
  __sync_fetch_and_add(&link->counters->bytes, skb->wire_len);
}

/* Bytes that wait in the token bucket when this buffer comes to it. */
static __always_inline __u64 take_in(const struct link *link, __u64 num_bytes, __u64 now_ns) {
  struct state *state = link->state;
  const struct settings *settings = link->settings;
  bpf_spin_lock(&state->lock);
  __u64 elapsed_ns = now_ns > state->drained_ns ? now_ns - state->drained_ns : 0;
  if (elapsed_ns > 1000000000) elapsed_ns = 1000000000; /* it is empty by then, and the product below is small */
  __u64 drained_bytes = elapsed_ns * settings->rate_bytes / 1000000000;
  __u64 waiting_bytes = state->waiting_bytes > drained_bytes ? state->waiting_bytes - drained_bytes : 0;
  __u64 queue_bytes = waiting_bytes > settings->burst_bytes ? waiting_bytes - settings->burst_bytes : 0;
  if (queue_bytes + num_bytes <= settings->limit_bytes) waiting_bytes += num_bytes;
  state->waiting_bytes = waiting_bytes;
  state->drained_ns = now_ns;
  bpf_spin_unlock(&state->lock);
  return queue_bytes;
}

SEC("tc/mark")
int mark(struct __sk_buff *skb) {
  struct link link;
  if (!find_link(&link) || link.settings->rate_bytes == 0) return TC_ACT_OK;
  count(&link, skb);
  __u64 queue_bytes = take_in(&link, skb->wire_len, bpf_ktime_get_ns());
  if (queue_bytes > link.counters->deepest_bytes) link.counters->deepest_bytes = queue_bytes;
  if (link.settings->mark_bytes == 0 || queue_bytes <= link.settings->mark_bytes) return TC_ACT_OK;
  __sync_fetch_and_add(&link.counters->markable_packets, segments_of(skb));
  if (bpf_skb_ecn_set_ce(skb)) __sync_fetch_and_add(&link.counters->marked_packets, segments_of(skb));
  return TC_ACT_OK;
}

/* Whether this buffer is lost: drawn, or because the burst that was drawn is not over. */
static __always_inline int draws_loss(const struct link *link, __u32 num_segments) {
  struct state *state = link->state;
  const struct settings *settings = link->settings;
  const int is_drawn = bpf_get_prandom_u32() % 1000000 < settings->loss_per_million;
  bpf_spin_lock(&state->lock);
  __u32 left = state->segments_to_lose;
  const int is_lost = is_drawn || left > 0;
  if (is_drawn && settings->loss_segments > left) left = settings->loss_segments;
  if (is_lost) left = left > num_segments ? left - num_segments : 0;
  state->segments_to_lose = left;
  bpf_spin_unlock(&state->lock);
  return is_lost;
}

SEC("tc/lose")
int lose(struct __sk_buff *skb) {
  struct link link;
  if (!find_link(&link) || link.settings->loss_per_million == 0) return TC_ACT_OK;
  count(&link, skb);
  if (!draws_loss(&link, segments_of(skb))) return TC_ACT_OK;
  __sync_fetch_and_add(&link.counters->lost_packets, segments_of(skb));
  __sync_fetch_and_add(&link.counters->lost_buffers, 1);
  return TC_ACT_SHOT;
}

char link_license[] SEC("license") = "Apache-2.0";
