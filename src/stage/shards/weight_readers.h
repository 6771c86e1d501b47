// The threads that bring weights from shards to the device, in the service of ShardWeights.
#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/progress.h"
#include "kernels/backend.h"
#include "stage/model/weight_source.h"
#include "stage/shards/shard_reader.h"

namespace lfm2 {

struct WeightRead {
  const ShardTensor* source = nullptr;  // null: writes zeros
  Tensor target;
  Placement place;
  int64_t count = 0;  // elements
  // Instead of these members: reads the scales of these weights, whose rows `rows` joins in `target`.
  std::vector<const ShardTensor*> scaled = {};
  WeightSource::Rows rows = WeightSource::Rows::kBehindOneAnother;
};

class WeightReaders {
 public:
  WeightReaders(const ShardSet& shards, Backend& backend, Progress& progress, int threads);
  WeightReaders(const WeightReaders&) = delete;
  WeightReaders& operator=(const WeightReaders&) = delete;
  ~WeightReaders();  // with reads left as well

  void add(WeightRead read);
  // Returns when everything that was added is on the device, or throws the first error of a thread. Nothing can be
  // added afterwards.
  void finish();

 private:
  void reader_loop();
  bool pop(WeightRead& read);  // waits for a read; false if no further one will come
  void read(const WeightRead& task, Loader& loader);
  void read_scales(const WeightRead& task, Loader& loader);
  void note_progress(uint64_t bytes);
  void stop(std::exception_ptr error);
  void join();

  const ShardSet& shards_;
  Backend& backend_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::multimap<int64_t, WeightRead, std::greater<>> left_;  // by number of elements; equal ones in the order of add()
  bool complete_ = false;                                    // nothing further will be added
  std::exception_ptr error_;
  Progress& progress_;                // all from mutex_ to here is guarded by it
  std::vector<std::thread> threads_;  // last, because the threads use all of the above
};

}  // namespace lfm2
