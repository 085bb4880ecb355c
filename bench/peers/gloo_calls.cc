// SPDX-License-Identifier: Apache-2.0
// gloo_calls RANK SIZE INTERFACE STORE CALL: one rank of Gloo over TCP. Prints "ready", then reads lines
// "TYPE BYTES ITERS" and answers each with a JSON object: this rank's times of a barrier and one call, the
// latter timed, as `switchml bench` times ours; one more ahead is not timed. A wrong element ends it.
// CALL: an all-reduce by ring, bcube (its newer interface), halving-doubling or ring-chunked (its older one, in place);
// all_gather, broadcast, barrier, or both: an all-reduce and an all-gather, by two threads.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

double cpu_seconds() {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return static_cast<double>(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

template <typename T> T value_of(size_t i, int factor) { return static_cast<T>(static_cast<int>(i % 1000) * factor); }

template <typename T> class Call {
public:
  Call(std::shared_ptr<gloo::Context> context, const std::string &what, size_t num_elems)
      : context_(context), what_(what), in_(num_elems), out_(num_elems),
        gathered_(is_gather() ? num_elems / context->size * context->size : 0) {
    for (size_t i = 0; i < num_elems; i++) in_[i] = value_of<T>(i, context->rank + 1);
    const std::vector<T *> pointers{out_.data()};
    const int count = static_cast<int>(num_elems);
    if (what == "halving-doubling")
      older_.reset(new gloo::AllreduceHalvingDoubling<T>(context, pointers, count));
    else if (what == "ring-chunked")
      older_.reset(new gloo::AllreduceRingChunked<T>(context, pointers, count));
  }

  void prepare() {
    if (older_ || (what_ == "broadcast" && context_->rank == 0)) std::copy(in_.begin(), in_.end(), out_.begin());
    wait_for_all();
  }

  void run() {
    if (older_) older_->run();
    else if (what_ == "all_gather") gather();
    else if (what_ == "broadcast") broadcast();
    else if (what_ == "barrier") wait_for_all();
    else if (what_ == "both") {
      std::thread other([this] { gather(); });
      sum();
      other.join();
    } else sum();
  }

  bool is_right() const {
    const int factor = what_ == "broadcast" ? 1 : context_->size * (context_->size + 1) / 2;
    const size_t part = gathered_.size() / context_->size;
    for (size_t i = 0; i < gathered_.size(); i++)
      if (gathered_[i] != value_of<T>(i, static_cast<int>(i / part) + 1)) return false;
    for (size_t i = 0; i < out_.size() && what_ != "all_gather" && what_ != "barrier"; i++)
      if (out_[i] != value_of<T>(i, factor)) return false;
    return true;
  }

private:
  bool is_gather() const { return what_ == "all_gather" || what_ == "both"; }

  void wait_for_all() {
    gloo::BarrierOptions options(context_);
    gloo::barrier(options);
  }

  void gather() {
    const size_t part = gathered_.size() / context_->size;
    gloo::AllgatherOptions options(context_);
    options.setInput(in_.data() + part * context_->rank, part);
    options.setOutput(gathered_.data(), gathered_.size());
    options.setTag(1);
    gloo::allgather(options);
  }

  void broadcast() {
    gloo::BroadcastOptions options(context_);
    options.setOutput(out_.data(), out_.size());
    options.setRoot(0);
    gloo::broadcast(options);
  }

  void sum() {
    gloo::AllreduceOptions options(context_);
    options.setInput(in_.data(), in_.size());
    options.setOutput(out_.data(), out_.size());
    options.setReduceFunction(static_cast<void (*)(void *, const void *, const void *, size_t)>(&gloo::sum<T>));
    options.setAlgorithm(what_ == "bcube" ? gloo::AllreduceOptions::Algorithm::BCUBE
                                   : gloo::AllreduceOptions::Algorithm::RING);
    gloo::allreduce(options);
  }

  std::shared_ptr<gloo::Context> context_;
  std::string what_;
  std::vector<T> in_, out_, gathered_;
  std::unique_ptr<gloo::Algorithm> older_;
};

template <typename T>
bool measure(std::shared_ptr<gloo::Context> context, const std::string &what, size_t num_bytes, int iters) {
  Call<T> call(context, what, num_bytes / 4);
  std::vector<double> times_us;
  double cpu_s = 0;
  for (int k = -1; k < iters; k++) {
    call.prepare();
    const double start_cpu_s = cpu_seconds();
    const auto start = std::chrono::steady_clock::now();
    call.run();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - start;
    if (k < 0) continue;
    times_us.push_back(time.count());
    cpu_s += cpu_seconds() - start_cpu_s;
  }
  std::printf("{\"cpu_s\": %.9f, \"times_us\": [", cpu_s / iters);
  for (size_t k = 0; k < times_us.size(); k++) std::printf("%s%.2f", k ? ", " : "", times_us[k]);
  std::printf("]}\n");
  std::fflush(stdout);
  return call.is_right();
}

} // namespace

int main(int argc, char **argv) {
  if (argc != 6) return 2;
  gloo::transport::tcp::attr attributes;
  attributes.iface = argv[3];
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(std::atoi(argv[1]), std::atoi(argv[2]));
  gloo::rendezvous::FileStore store(argv[4]);
  context->connectFullMesh(store, device);
  std::printf("ready\n");
  std::fflush(stdout);
  std::string type;
  size_t num_bytes = 0;
  int iters = 0;
  while (std::cin >> type >> num_bytes >> iters) {
    const bool is_right = type == "float32" ? measure<float>(context, argv[5], num_bytes, iters)
                                            : measure<int32_t>(context, argv[5], num_bytes, iters);
    if (!is_right) {
      std::fprintf(stderr, "Gloo: wrong elements\n");
      return 1;
    }
  }
  return 0;
}
