// SPDX-License-Identifier: Apache-2.0
// gloo_replay RANK SIZE INTERFACE STORE THREADS PLAN WARMUP ITERS: replays a plan of `switchml bench training --plan`
// with Gloo's ring over TCP; so many all-reduces are under way at once, 2 as in PyTorch. Prints a JSON object.
// Status 1: an element was wrong.
#include <gloo/allreduce.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "replay.h"

namespace {

void sum_sends(std::shared_ptr<gloo::Context> context, struct replay *r) {
  for (int64_t number; (number = replay_take(r)) >= 0; replay_finish(r, number)) {
    const struct replay_send &send = r->sends[number % r->num_sends];
    gloo::AllreduceOptions options(context);
    options.setInput(const_cast<float *>(replay_input(r, number)), static_cast<size_t>(send.num_elems));
    options.setOutput(r->out + send.first_elem, static_cast<size_t>(send.num_elems));
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<float>));
    options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
    options.setTag(static_cast<uint32_t>(number % 100000) + 1);
    options.setTimeout(std::chrono::seconds(120));
    gloo::allreduce(options);
  }
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 9) return 2;
  const int rank = std::atoi(argv[1]), size = std::atoi(argv[2]);
  static struct replay r;
  const unsigned num_timed = static_cast<unsigned>(std::atoi(argv[8]));
  replay_init(&r, argv[6], rank, static_cast<unsigned>(std::atoi(argv[7])) + num_timed);
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
  for (int i = 0; i < std::atoi(argv[5]); i++) threads.emplace_back(sum_sends, context, &r);
  replay_compute(&r);
  for (auto &thread : threads) thread.join();
  const double cpu_s = replay_cpu_s() - start_cpu_s;
  const long num_wrong = replay_count_wrong(&r, size);
  replay_print(&r, num_timed, cpu_s, num_wrong);
  gloo::barrier(barrier);
  return num_wrong != 0;
}
