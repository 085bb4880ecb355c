/* SPDX-License-Identifier: Apache-2.0 */
#include "core/congestion.h"

#define ONE (UINT64_C(1) << 20)
/* The window at the start and after an idle time: what one segmented send carries anyway, or RFC 6928's ten packets. */
#define INITIAL_BYTES 92160u
#define INITIAL_MIN_CHUNKS 10u
#define KEPT_PERCENT 70u   /* beta_cubic, of RFC 9438 section 4.6 and of Linux */
#define RENO_PER_MILLE 529u /* alpha_cubic = 3 (1 - beta) / (1 + beta), section 4.3 */
#define DEEPEST_KEPT_NS (30 * SML_NS_PER_S)
#define SHORT_QUEUE_NS (250 * SML_NS_PER_US)
#define DEEP_SHARE 4u
#define PATH_BYTES_PER_US 1250u /* 10 Gbit/s: nobody knows the rate */
#define MAX_GROWING_MS 100000
#define MAX_FORGIVEN 32u /* round trips */
#define EVIDENCE_KEPT_NS SML_NS_PER_S
#define MARKS_TRIED 16u      /* round trips with a mark in a row, with the smallest window: others make them */
#define MARKS_STAND 512u     /* for so many round trips then */
#define NEAR_NS SML_RTO_LONG_PATH_NS /* below it one segmented send harms nobody */
#define FAR_LOSS_SHARE 16u   /* losses up to this share of a round's chunks are random */
#define FAR_LEAST_LOSSES 8u
#define FAR_ROUNDS 16u       /* what the path held counts for so many rounds */
#define FAR_FULL_ROUNDS 3u   /* the path is full if so many rounds brought less than a fourth more */
#define FAR_GROWTH 2u        /* until then, for each completed chunk: the window triples each round trip */
#define FAR_PACED_GROWTH 8u  /* the same once the path's rate is known */
#define FAR_MARGIN 8u        /* an eighth faster than that rate, and more than the path holds: it may be wider */
#define FAR_LEAST_WIDER 16u  /* it is, if the rate grows by a sixteenth */
#define FAR_GAIN 2u          /* then so many times what the path holds may be under way */
#define FAR_LEAST_NS (5 * SML_NS_PER_MS) /* a path counts as at least so long: chunks wait for processors, too */
#define TRAIN_NS (2 * SML_NS_PER_MS)     /* of results at least, or a fourth of the path: engines let them gather */
#define TRAIN_CHUNKS 16u
#define TURN_NS SML_NS_PER_MS            /* what leaves at once, or a sixteenth of the path */
#define UNPACED (UINT64_MAX / 2)

static uint64_t chunks(uint32_t num) {
  return num * ONE;
}

void sml_congestion_init(struct sml_congestion *c, uint32_t max_chunks, uint32_t chunk_bytes, uint32_t num_flows,
                         uint64_t path_ns, bool is_off) {
  const uint32_t initial_chunks = sml_max_u32(INITIAL_BYTES / chunk_bytes, INITIAL_MIN_CHUNKS);
  *c = (struct sml_congestion){.max_chunks = max_chunks, .threshold = UINT64_MAX, .min_rtt_ns = UINT64_MAX};
  c->path_ns = path_ns;
  c->is_fixed = is_off || max_chunks < SML_CONGESTION_MIN_SLOTS;
  c->chunk_bytes = chunk_bytes;
  c->has_little = (uint64_t)num_flows * SML_CONGESTION_MIN_CHUNKS * chunk_bytes <= INITIAL_BYTES;
  c->path_chunks = max_chunks;
  c->initial_chunks = c->is_fixed ? max_chunks : sml_min_u32(initial_chunks, max_chunks);
  c->window = chunks(c->initial_chunks);
  c->credit = UNPACED;
  c->next_turn_ns = SML_NEVER;
}

/* ---- growth ---- */

/* The largest x with x^3 <= value. */
static uint64_t cube_root(uint64_t value) {
  uint64_t root = 0;
  for (uint64_t bit = UINT64_C(1) << 20; bit > 0; bit >>= 1) {
    const uint64_t x = root + bit;
    if (x * x * x <= value) root = x;
  }
  return root;
}

/* W_cubic(t) = 0.4 (t - K)^3 + peak, in seconds and chunks. At the time K it is at the peak again. */
static uint64_t cubic_window(const struct sml_congestion *c, uint64_t rtt_ns) {
  const uint64_t lost = c->peak > c->threshold ? c->peak - c->threshold : 0;
  const int64_t k_ms = (int64_t)cube_root(lost / (ONE / 1000) * 2500000);
  const uint64_t t_ms = (c->grown_ns + rtt_ns) / SML_NS_PER_MS;
  int64_t d = (int64_t)sml_min_u64(t_ms, MAX_GROWING_MS) - k_ms;
  if (d < -MAX_GROWING_MS) d = -MAX_GROWING_MS;
  const int64_t offset = d * d * d / 10000 * (int64_t)(ONE * 4 / 1000) / 1000;
  const int64_t window = (int64_t)c->peak + offset;
  return window < (int64_t)ONE ? ONE : (uint64_t)window;
}

bool sml_congestion_is_far(const struct sml_congestion *c) {
  return sml_min_u64(c->path_ns, c->min_rtt_ns) >= NEAR_NS;
}

static bool is_far(const struct sml_congestion *c) {
  return sml_congestion_is_far(c) && c->min_rtt_ns != UINT64_MAX && !c->is_fixed;
}

/* ---- pace ---- */

/* 0: not known, or the lane is not paced. */
static uint64_t path_rate(const struct sml_congestion *c) {
  return c->is_paced ? sml_max_u64(c->rate, c->rate_before) : 0;
}

static uint64_t train_ns(const struct sml_congestion *c) {
  return sml_min_u64(c->min_rtt_ns / 4, TRAIN_NS);
}

/* A train ends when it is long enough, or nothing follows. Chunks that were read at once may have come long before, and
 * what waited for a busy host comes at once. So one train may be too fast, and the next one has to agree. */
static void note_train(struct sml_congestion *c, uint64_t now_ns) {
  if (now_ns > c->completed_ns) {
    const uint64_t least_ns = train_ns(c), lasted_ns = c->completed_ns - c->train_ns;
    const bool is_over = now_ns - c->completed_ns > least_ns;
    const bool is_long = lasted_ns >= least_ns && c->train_chunks >= TRAIN_CHUNKS;
    if (is_long || is_over) {
      const uint64_t rate = is_long ? c->train_chunks * SML_NS_PER_S / lasted_ns : 0;
      c->round_rate = sml_max_u64(c->round_rate, sml_min_u64(rate, c->train_rate));
      c->train_ns = is_over ? now_ns : c->completed_ns;
      c->train_chunks = 0;
      c->train_rate = is_over ? 0 : rate;
    }
  }
  c->train_chunks++;
}

/* The window may grow to what the path holds at its rate, and what comes while results gather; any: it is not known. */
static uint64_t found_window(const struct sml_congestion *c) {
  const uint64_t rate = path_rate(c), margin_ns = sml_max_u64(c->min_rtt_ns / FAR_MARGIN, train_ns(c));
  if (rate == 0) return UINT64_MAX;
  return sml_max_u64(rate * (c->min_rtt_ns + margin_ns) / SML_NS_PER_S * ONE, chunks(c->initial_chunks));
}

/* For each completed chunk, before the path was full once. */
static uint64_t far_growth(const struct sml_congestion *c) {
  const uint64_t found = found_window(c);
  if (c->window >= found) return 0;
  if (path_rate(c) == 0 || c->has_widened) return FAR_GROWTH * ONE;
  return sml_min_u64(FAR_PACED_GROWTH * ONE, found - c->window);
}

/* A small window is not paced: its burst harms nobody, and shows the rate. */
void sml_congestion_take_turn(struct sml_congestion *c, uint64_t now_ns) {
  if (path_rate(c) == 0 || c->window < found_window(c) / 8) {
    c->credit = UNPACED;
    return;
  }
  const uint64_t rate = path_rate(c) + path_rate(c) / (c->has_widened ? 1 : FAR_MARGIN);
  const uint64_t turn_ns = sml_min_u64(c->min_rtt_ns / 16, TURN_NS);
  SML_ASSERT(rate > 0);
  const uint64_t most = turn_ns * rate + SML_CONGESTION_MIN_CHUNKS * SML_CONGESTION_CHUNK;
  const uint64_t passed_ns = sml_min_u64(now_ns - c->turn_ns, SML_NS_PER_S);
  c->credit = sml_min_u64(c->credit + passed_ns * rate, most);
  c->turn_ns = now_ns;
  c->next_turn_ns = now_ns + most / rate / 2;
}

static void grow(struct sml_congestion *c, const struct sml_rto *rto, uint64_t now_ns) {
  /* Time counts only while the window holds the lane back. */
  const uint64_t passed_ns = now_ns - c->growing_since_ns;
  c->growing_since_ns = now_ns;
  if (!c->is_limited && !c->was_limited) return;
  c->grown_ns += sml_min_u64(passed_ns, 2 * rto->srtt_ns);
  if (c->window < c->threshold) {
    c->window += is_far(c) && !c->is_full ? far_growth(c) : ONE;
  } else {
    const uint64_t num = c->window / ONE;
    SML_ASSERT(num > 0);
    c->reno += ONE * RENO_PER_MILLE / 1000 / num;
    uint64_t target = sml_max_u64(cubic_window(c, rto->srtt_ns), c->reno);
    target = sml_min_u64(target, c->window + c->window / 2);
    if (target > c->window) c->window += (target - c->window) / num;
  }
  c->window = sml_min_u64(c->window, chunks(c->path_chunks));
}

static uint64_t held_for_ns(const struct sml_congestion *c) {
  return sml_max_u64(c->min_rtt_ns, FAR_LEAST_NS);
}

/* In whole chunks. */
static uint64_t most_held(const struct sml_congestion *c) {
  return sml_max_u64(c->most_held, c->most_held_before);
}

/* Limits the window to what the path holds, now that its length or what it held is known better. */
static void note_path(struct sml_congestion *c) {
  SML_ASSERT(c->chunk_bytes > 0);
  if (c->max_chunks <= SML_CONGESTION_USUAL_SLOTS || c->is_fixed) return;
  uint64_t path_bytes =
      sml_max_u64(c->min_rtt_ns / SML_NS_PER_US * PATH_BYTES_PER_US, SML_CONGESTION_USUAL_BYTES);
  if (c->is_full)
    path_bytes = sml_min_u64(path_bytes, FAR_GAIN * most_held(c) * c->chunk_bytes);
  c->path_chunks = (uint32_t)sml_min_u64(c->max_chunks, sml_max_u64(path_bytes / c->chunk_bytes, c->initial_chunks));
  c->window = sml_min_u64(c->window, chunks(c->path_chunks));
}

/* Notes how long what completes now has queued. It skips a round in which a rank was late: then chunks waited at the
 * aggregator, and came all at once. */
static void note_queue(struct sml_congestion *c, const struct sml_rto *rto, uint64_t passed_ns, uint64_t now_ns) {
  if (now_ns - c->deepest_since_ns > DEEPEST_KEPT_NS) {
    c->deepest_before_ns = c->deepest_ns;
    c->deepest_ns = 0;
    c->deepest_since_ns = now_ns;
  }
  if (2 * c->round_gap_ns < passed_ns && rto->srtt_ns > c->min_rtt_ns)
    c->deepest_ns = sml_max_u64(c->deepest_ns, rto->srtt_ns - c->min_rtt_ns);
}

static void reduce(struct sml_congestion *c, uint64_t floor, uint64_t order, uint64_t last_order, uint64_t now_ns) {
  if (order <= c->reduced_order || c->is_fixed) return;
  const uint64_t kept = sml_max_u64(c->window / 100 * KEPT_PERCENT, floor);
  const uint64_t window = sml_max_u64(kept, chunks(SML_CONGESTION_MIN_CHUNKS));
  if (window >= c->window) return;
  c->reduced_order = last_order;
  c->num_reductions++;
  /* Fast convergence: a flow whose window shrinks from one reduction to the next makes room for a newcomer. */
  c->peak = c->window < c->peak ? c->window / 200 * (100 + KEPT_PERCENT) : c->window;
  c->window = c->threshold = c->reno = window;
  c->grown_ns = 0;
  c->growing_since_ns = now_ns;
}

/* Losses, and marks that others make, keep at least so much of the window in a data centre. */
static uint32_t least_kept(const struct sml_congestion *c) {
  return sml_min_u32(c->initial_chunks, c->max_chunks / 4);
}

static uint64_t kept_of_marks(const struct sml_congestion *c) {
  return c->num_others_marks > 0 && !is_far(c) ? chunks(least_kept(c)) : 0;
}

static void find_full(struct sml_congestion *c) {
  if (!c->is_full) c->threshold = sml_min_u64(c->threshold, c->window);
  c->is_full = true;
}

void sml_congestion_share(struct sml_congestion *c, uint64_t window) {
  if (c->is_fixed) return;
  if (is_far(c)) find_full(c);
  window = sml_min_u64(sml_max_u64(window, kept_of_marks(c)), chunks(c->path_chunks));
  if (window < c->window) c->peak = c->window;
  c->window = c->threshold = c->reno = window;
  c->grown_ns = 0;
}

/* A long path is full when more chunks under way do not come faster. */
static void note_held(struct sml_congestion *c, uint64_t passed_ns) {
  const uint64_t held = passed_ns == 0 ? 0 : c->round_chunks * held_for_ns(c) / passed_ns;
  const uint64_t most = most_held(c);
  const bool is_used = c->is_limited || chunks(2) * c->round_chunks >= c->window;
  const uint64_t rate = path_rate(c);
  c->has_widened = is_used && rate > 0 && c->round_rate > rate + rate / FAR_LEAST_WIDER;
  if (held > most + most / (rate == 0 ? 4 : FAR_LEAST_WIDER)) c->num_full_rounds = 0;
  else if (is_used) c->num_full_rounds++;
  if (c->num_full_rounds >= FAR_FULL_ROUNDS) find_full(c);
  if (is_used) c->rate = sml_max_u64(c->rate, c->round_rate);
  c->round_rate = 0;
  const bool is_last = is_used && ++c->num_held_rounds % FAR_ROUNDS == 0;
  if (is_last) {
    c->most_held_before = c->most_held;
    c->most_held = 0;
    c->rate_before = c->rate;
    c->rate = 0;
  }
  if (c->is_full && (is_last || c->has_widened)) /* has it become wider? */
    c->threshold = sml_max_u64(c->threshold, sml_min_u64(c->window / 4 * 5, found_window(c)));
  c->most_held = sml_max_u64(c->most_held, held);
  note_path(c);
}

/* Marks that go on although the job has hardly anything under way are made by flows that ignore them. A long path may
 * be so slow that this is much. */
static void note_marks(struct sml_congestion *c) {
  const bool is_in_vain =
      c->is_marked && c->has_little && !is_far(c) && c->window < chunks(2 * SML_CONGESTION_MIN_CHUNKS);
  c->is_marked = false;
  c->num_in_vain = is_in_vain ? c->num_in_vain + 1 : 0;
  if (c->num_others_marks > 0) c->num_others_marks--;
  if (c->num_in_vain < MARKS_TRIED) return;
  c->num_in_vain = 0;
  c->num_others_marks = MARKS_STAND;
  c->threshold = sml_max_u64(c->threshold, kept_of_marks(c));
}

/* On a path that is not so long, trains also show when processors read them. There they count for nothing before a
 * queue has overflowed. */
static void end_round(struct sml_congestion *c, const struct sml_rto *rto, uint64_t last_order, uint64_t now_ns) {
  SML_ASSERT(last_order >= c->round_order);
  const bool is_sure = sml_min_u64(c->path_ns, c->min_rtt_ns) >= FAR_LEAST_NS;
  c->is_paced = is_far(c) && (is_sure || c->has_overflowed);
  if (is_far(c)) {
    note_held(c, now_ns - c->round_ns);
    if (c->round_losses > sml_max_u64(c->round_chunks / FAR_LOSS_SHARE, FAR_LEAST_LOSSES)) {
      c->has_overflowed = true;
      find_full(c);
      reduce(c, most_held(c) * ONE * c->min_rtt_ns / held_for_ns(c), last_order, last_order, now_ns);
    }
  }
  c->round_chunks = c->round_losses = 0;
  note_queue(c, rto, now_ns - c->round_ns, now_ns);
  note_marks(c);
  c->was_limited = c->is_limited;
  c->is_limited = false;
  c->round_gap_ns = 0;
  c->round_order = last_order;
  c->round_ns = now_ns;
}

void sml_congestion_on_completed(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order,
                                 uint64_t last_order, uint64_t now_ns) {
  c->round_gap_ns = sml_max_u64(c->round_gap_ns, now_ns - c->completed_ns);
  if (sml_congestion_is_far(c)) note_train(c, now_ns);
  c->completed_ns = now_ns;
  c->round_chunks++;
  if (rto->min_ns < c->min_rtt_ns && rto->min_ns > 0) {
    c->min_rtt_ns = rto->min_ns;
    note_path(c);
  }
  if (c->window < chunks(c->path_chunks)) grow(c, rto, now_ns);
  if (order > c->round_order) end_round(c, rto, last_order, now_ns);
}

/* ---- reduction ---- */

/* A loss with a short queue is random: the path loses packets for no reason. So losses that follow are forgiven, too,
 * once a round trip and for a while. The window stays, and soon is again what it was before losses reduced it. */
static bool is_forgiven(struct sml_congestion *c, bool is_short, uint64_t now_ns) {
  if (is_short) {
    c->num_to_forgive = MAX_FORGIVEN;
    c->random_ns = now_ns;
    c->threshold = sml_max_u64(c->threshold, c->best);
    return true;
  }
  if (c->num_to_forgive == 0 || now_ns - c->random_ns > EVIDENCE_KEPT_NS) return false;
  c->num_to_forgive--;
  return true;
}

/* A queue loses packets when it is full. It is not full if it is shorter than a fourth of the longest that the path was
 * seen to hold, or shorter than one and a half round trips (and 250 us). That part of the window stays. */
void sml_congestion_on_loss(struct sml_congestion *c, const struct sml_rto *rto, uint64_t order, uint64_t last_order,
                            uint64_t now_ns) {
  c->round_losses += order > c->reduced_order; /* what was sent before says nothing new */
  if (order <= c->reduced_order || order <= c->loss_order || c->is_fixed || is_far(c)) return;
  c->loss_order = last_order;
  const uint64_t least_ns = sml_min_u64(c->min_rtt_ns, rto->min_ns);
  const uint64_t short_ns = sml_min_u64(least_ns + least_ns / 2, SHORT_QUEUE_NS);
  const uint64_t queue_ns = sml_max_u64(short_ns, sml_max_u64(c->deepest_ns, c->deepest_before_ns) / DEEP_SHARE);
  uint64_t floor = rto->srtt_ns == 0 ? 0 : c->window / rto->srtt_ns * (least_ns + queue_ns);
  if (is_forgiven(c, floor >= c->window, now_ns)) return;
  if (c->window > c->best || now_ns - c->best_ns > EVIDENCE_KEPT_NS) {
    c->best = c->window;
    c->best_ns = now_ns;
  }
  if (least_ns < NEAR_NS && rto->srtt_ns > 0) floor = sml_max_u64(floor, chunks(least_kept(c)));
  reduce(c, floor, order, last_order, now_ns);
}

void sml_congestion_on_mark(struct sml_congestion *c, uint64_t order, uint64_t last_order, uint64_t now_ns) {
  c->best = 0; /* it was too much, whatever is lost */
  c->is_marked = true;
  reduce(c, kept_of_marks(c), order, last_order, now_ns);
}

void sml_congestion_on_idle(struct sml_congestion *c) {
  const uint64_t initial = path_rate(c) > 0 ? found_window(c) : chunks(c->initial_chunks);
  if (c->window <= initial) return;
  c->threshold = sml_max_u64(c->threshold, c->window);
  c->window = initial;
}
