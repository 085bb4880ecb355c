/* SPDX-License-Identifier: Apache-2.0
 * A window of chunks that not everybody contributes to, nor hears (docs/adr/0045-one-way-collectives.md): sums that only
 * their owner gets, or copies of what the owner has. Position p is in slot p mod W; a fence, to and from all, follows every
 * Q positions, and its slots have two versions. The network is a bag with loss and repetition; timers may fire at any time.
 * What was built differs: fences are positions of the window, and all of its slots have two versions (the decision says
 * why, under "As built"). Random worlds show that one (src/core/one_way_test.c).
 *   safe  what a worker takes is the sum of all contributors of its position, once each; no honest worker is accused
 *   live  from every reachable state with empty channels a perfect network leads further */

#ifndef N
#define N 2 /* workers */
#endif
#ifndef C
#define C 1 /* packets in flight, a worker and direction */
#endif
#ifndef P
#define P 4 /* positions; worker p mod N owns p */
#endif
#ifndef W
#define W 2 /* slots */
#endif
#ifndef Q
#define Q 1
#endif
#ifndef COPIES
#define COPIES 0 /* the owner contributes, and all others hear; else the other way round */
#endif
#ifndef WAITS
#define WAITS 1 /* for the fence, before a slot is used again */
#endif
#ifndef HAS_RESULTS
#define HAS_RESULTS 1 /* whoever contributes to a fence has what is for it of the positions before */
#endif
#ifndef VERSIONS
#define VERSIONS 2 /* of a fence's slot */
#endif
#ifndef ACCUSED
#define ACCUSED 1 /* look for workers that are accused */
#endif

#define F (W / Q) /* fences' slots */
#define ALL ((1 << N) - 1)
#define BIT(i) (1 << (i))
#define MARK(w, p) (1 << ((w) * P + (p)))
#define OWNER(p) ((p) % N)
#define CONTRIBUTORS(p) (COPIES -> BIT(OWNER(p)) : ALL & ~BIT(OWNER(p))) /* the others are receivers */
#define CONTRIBUTES(w, p) ((CONTRIBUTORS(p) & BIT(w)) != 0)
#define MAY(w, p) (!WAITS || (p) < W || (passed[w] & BIT(((p) - W) / Q)) != 0)

/* Up: an update is its position, PROBE + it asks, FENCE + k contributes. Down: 2 * position, + 1 if wrong; FENCE + k. */
#define PROBE 32
#define FENCE 64
typedef Queue {
  byte num;
  byte packet[C]
}
typedef Cell {
  byte last; /* position + 1; 0: never used */
  byte seen;
  int pool;  /* set of MARKs */
  bool has_double
}
Queue queue[2 * N]; /* queue[w] goes up from worker w, queue[N + w] down to it */
Cell cell[W], fence[F * VERSIONS];
byte got[N], passed[N]; /* positions, fences */

/* Scratch, zero between two actions. */
byte w, q, place, fate, taken, v, r, i, j, k, wanted;
bool has_progress, is_next, is_sum_right;
int whole;

/* Sorted: states that differ in the order alone are one. */
inline put(to, value) {
  j = queue[to].num;
  do
  :: j > 0 && queue[to].packet[j - 1] > value -> queue[to].packet[j] = queue[to].packet[j - 1]; j--
  :: else -> break
  od;
  queue[to].packet[j] = value;
  queue[to].num++
}

inline remove(from) {
  taken = queue[from].packet[place];
  queue[from].num--;
  j = place;
  do
  :: j < queue[from].num -> queue[from].packet[j] = queue[from].packet[j + 1]; j++
  :: else -> break
  od;
  queue[from].packet[j] = 0
}

inline send_result(to, p) {
  whole = 0;
  k = 0;
  do
  :: k < N -> whole = whole | (CONTRIBUTES(k, p) -> MARK(k, p) : 0); k++
  :: else -> break
  od;
  put(N + to, 2 * (p) + (cell[v].pool != whole || cell[v].has_double))
}

inline take_update(from, p) {
  v = (p) % W;
  if
  :: p + 1 > cell[v].last ->
    is_next = (cell[v].last == 0 -> p < W : p + 1 == cell[v].last + W && cell[v].seen == CONTRIBUTORS(cell[v].last - 1));
    assert(!ACCUSED || is_next);
    cell[v].last = p + 1; cell[v].seen = 0; cell[v].pool = 0; cell[v].has_double = false
  :: else
  fi;
  if
  :: p + 1 == cell[v].last && (cell[v].seen & BIT(from)) == 0 ->
    cell[v].has_double = cell[v].has_double || (cell[v].pool & MARK(from, p)) != 0;
    cell[v].pool = cell[v].pool | MARK(from, p);
    cell[v].seen = cell[v].seen | BIT(from);
    r = 0;
    do
    :: r < N && cell[v].seen == CONTRIBUTORS(p) && !CONTRIBUTES(r, p) -> send_result(r, p); r++
    :: r < N && !(cell[v].seen == CONTRIBUTORS(p) && !CONTRIBUTES(r, p)) -> r++
    :: r == N -> break
    od
  :: else /* stale, or seen */
  fi
}

inline answer(to, p) {
  v = (p) % W;
  if
  :: p + 1 == cell[v].last && cell[v].seen == CONTRIBUTORS(p) -> send_result(to, p)
  :: else
  fi
}

inline take_fence(from, number) {
  v = (number) % (F * VERSIONS);
  if
  :: number + 1 > fence[v].last -> fence[v].last = number + 1; fence[v].seen = 0
  :: else
  fi;
  if
  :: number + 1 == fence[v].last && fence[v].seen == ALL -> put(N + from, FENCE + number)
  :: number + 1 == fence[v].last && fence[v].seen != ALL ->
    fence[v].seen = fence[v].seen | BIT(from);
    r = 0;
    do
    :: r < N && fence[v].seen == ALL -> put(N + r, FENCE + number); r++
    :: else -> break
    od
  :: else /* stale */
  fi
}

inline aggregate(from, message) {
  if
  :: message < PROBE -> take_update(from, message)
  :: message >= PROBE && message < FENCE -> answer(from, message - PROBE)
  :: else -> take_fence(from, message - FENCE)
  fi
}

inline hear(to, message) {
  if
  :: message >= FENCE ->
    has_progress = has_progress || (passed[to] & BIT(message - FENCE)) == 0;
    passed[to] = passed[to] | BIT(message - FENCE)
  :: message < FENCE && (got[to] & BIT(message / 2)) == 0 ->
    is_sum_right = message % 2 == 0;
    assert(is_sum_right);
    got[to] = got[to] | BIT(message / 2);
    has_progress = true
  :: else
  fi
}

/* What worker `by` may send about position or fence `number`, into `wanted`; FENCE + P: nothing. */
inline choose(by, is_fence, number) {
  wanted = FENCE + P;
  if
  :: !(is_fence) && MAY(by, number) && CONTRIBUTES(by, number) && (passed[by] & BIT((number) / Q)) == 0 -> wanted = number
  :: !(is_fence) && MAY(by, number) && !CONTRIBUTES(by, number) && (got[by] & BIT(number)) == 0 -> wanted = PROBE + (number)
  :: (is_fence) && (number) < P / Q && (passed[by] & BIT(number)) == 0 && ((number) < F || (passed[by] & BIT((number) - F)) != 0) ->
    wanted = FENCE + (number);
    k = (number) * Q;
    do
    :: k < ((number) + 1) * Q && HAS_RESULTS && !CONTRIBUTES(by, k) && (got[by] & BIT(k)) == 0 -> wanted = FENCE + P; k++
    :: k < ((number) + 1) * Q && !(HAS_RESULTS && !CONTRIBUTES(by, k) && (got[by] & BIT(k)) == 0) -> k++
    :: k >= ((number) + 1) * Q -> break
    od
  :: else
  fi
}

inline forget_scratch() {
  w = 0; q = 0; place = 0; fate = 0; taken = 0; v = 0; r = 0; i = 0; j = 0; k = 0; wanted = 0;
  has_progress = false; is_next = false; is_sum_right = false; whole = 0
}

/* A perfect network: every timer fires once, and every packet arrives at once. */
inline be_calm() {
  place = 0;
  do
  :: w < N && i < 2 * P ->
    choose(w, i >= P, i % P);
    if
    :: wanted != FENCE + P ->
      aggregate(w, wanted);
      q = 0;
      do
      :: q < N && queue[N + q].num > 0 -> remove(N + q); hear(q, taken)
      :: q < N && queue[N + q].num == 0 -> q++
      :: q == N -> break
      od
    :: else
    fi;
    i++
  :: w < N && i == 2 * P -> i = 0; w++
  :: w == N -> break
  od
}

#define HAS_ENDED(x) (passed[x] == BIT(P / Q) - 1)
#if N == 2
#define HAS_ROOM_DOWN (queue[2].num < C && queue[3].num < C)
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num)
#else
#define HAS_ROOM_DOWN (queue[3].num < C && queue[4].num < C && queue[5].num < C)
#define HAVE_ALL_ENDED (HAS_ENDED(0) && HAS_ENDED(1) && HAS_ENDED(2))
#define NUM_PACKETS (queue[0].num + queue[1].num + queue[2].num + queue[3].num + queue[4].num + queue[5].num)
#endif

active proctype world() {
  do
  :: !HAVE_ALL_ENDED -> atomic { /* a worker sends, for the first time or again */
      select(w : 0 .. N - 1);
      select(i : 0 .. 2 * P - 1);
      d_step {
        choose(w, i >= P, i % P);
        if
        :: wanted != FENCE + P && queue[w].num < C -> put(w, wanted)
        :: else
        fi;
        forget_scratch()
      }
    }
  :: NUM_PACKETS > 0 -> atomic { /* a packet arrives, arrives and is repeated later, or is lost */
      select(q : 0 .. 2 * N - 1);
      select(place : 0 .. C - 1);
      select(fate : 0 .. 2);
      d_step {
        if
        :: place >= queue[q].num || (q < N && fate != 2 && !HAS_ROOM_DOWN) /* later */
        :: else ->
          if
          :: fate == 1 -> taken = queue[q].packet[place]
          :: else -> remove(q)
          fi;
          if
          :: fate == 2
          :: fate != 2 && q < N -> aggregate(q, taken)
          :: else -> hear(q - N, taken)
          fi
        fi;
        forget_scratch()
      }
    }
  :: NUM_PACKETS == 0 && !HAVE_ALL_ENDED -> d_step {
      be_calm();
      assert(has_progress); /* stuck */
      forget_scratch()
    }
  :: HAVE_ALL_ENDED && NUM_PACKETS == 0 -> break
  od
}
