// SPDX-License-Identifier: Apache-2.0
// gloo_replay RANK SIZE INTERFACE STORE THREADS PLAN WARMUP ITERS: replays a plan of `switchml bench training --plan`
// with Gloo's ring over TCP; so many calls are under way at once, 2 as in PyTorch. A reduce-scatter is an all-reduce of
// which a rank keeps its part, as in PyTorch. Prints a JSON object.
// Status 1: an element was wrong.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "replay.h"

namespace {

void sum(std::shared_ptr<gloo::Context> context, struct replay *r, int64_t number, float *out) {
  const struct replay_send &send = r->sends[number % r->num_sends];
  gloo::AllreduceOptions options(context);
  options.setInput(const_cast<float *>(replay_input(r, number)), static_cast<size_t>(send.num_elems));
  options.setOutput(out, static_cast<size_t>(send.num_elems));
  options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  options.setTag(static_cast<uint32_t>(number % 100000) + 1);
  options.setTimeout(std::chrono::seconds(120));
  gloo::allreduce(options);
}

void scatter(std::shared_ptr<gloo::Context> context, struct replay *r, int64_t number) {
  const struct replay_send &send = r->sends[number % r->num_sends];
  std::vector<float> sums(static_cast<size_t>(send.num_elems));
  sum(context, r, number, sums.data());
  const int64_t part = send.num_elems / r->world_size;
  std::copy_n(sums.data() + part * r->rank, part, r->own + send.first_elem / r->world_size);
}

void gather(std::shared_ptr<gloo::Context> context, struct replay *r, int64_t number) {
  const struct replay_send &send = r->sends[number % r->num_sends];
  gloo::AllgatherOptions options(context);
  options.setInput(const_cast<float *>(replay_input(r, number)), static_cast<size_t>(send.num_elems / r->world_size));
  options.setOutput(r->out + send.first_elem, static_cast<size_t>(send.num_elems));
  options.setTag(static_cast<uint32_t>(number % 100000) + 1);
  options.setTimeout(std::chrono::seconds(120));
  gloo::allgather(options);
}

void take_sends(std::shared_ptr<gloo::Context> context, struct replay *r) {
  for (int64_t number; (number = replay_take(r)) >= 0; replay_finish(r, number)) {
    const struct replay_send &send = r->sends[number % r->num_sends];
    if (send.call == REPLAY_GATHER) gather(context, r, number);
    else if (send.call == REPLAY_SCATTER) scatter(context, r, number);
    else sum(context, r, number, r->out + send.first_elem);
  }
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 9) return 2;
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
  static struct replay r;
  const unsigned num_timed = static_cast<unsigned>(std::atoi(argv[8]));
  replay_init(&r, argv[6], rank, size, static_cast<unsigned>(std::atoi(argv[7])) + num_timed);
  gloo::transport::tcp::attr attributes;
  attributes.iface = argv[3];
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
  gloo::rendezvous::FileStore store(argv[4]);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  gloo::BarrierOptions barrier(context);
  gloo::barrier(barrier);
  const double start_cpu_s = replay_cpu_s();
  std::vector<std::thread> threads;
  for (int i = 0; i < std::atoi(argv[5]); i++) threads.emplace_back(take_sends, context, &r);
  replay_compute(&r);
  for (auto &thread : threads) thread.join();
  const double cpu_s = replay_cpu_s() - start_cpu_s;
  const long num_wrong = replay_count_wrong(&r);
  replay_print(&r, num_timed, cpu_s, num_wrong);
  gloo::barrier(barrier);
  return num_wrong != 0;
}
