// Loads a stage's weights from shards into device memory and owns them. The embedding and head of the ends are asked
// for like the rest.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <set>
#include <thread>

#include "kernels/tensor_memory.h"
#include "stage/model/weight_source.h"
#include "stage/shards/shard_reader.h"
#include "stage/support/progress.h"

namespace lfm2 {

// The type a stored weight is held in: as stored where the compute type is fp32 (its values are used exactly), else the
// compute type. The expert bias, which only ranks experts, stays fp32.
DType held_dtype(DType stored, DType compute, bool keep_fp32);

// Reader threads take tensors one by one: each reads its bytes into a Loader's pieces, adds them to the checksum and
// hands them to the device.
class ShardWeights : public WeightSource {
 public:
  ShardWeights(const ShardSet& shards, Backend& backend, DType compute, Progress& progress, int readers);
  ShardWeights(const ShardWeights&) = delete;
  ShardWeights& operator=(const ShardWeights&) = delete;
  ~ShardWeights() override;  // ends the readers, whatever they have left to do

  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) override;
  // Returns when everything asked for is on the device, or throws the first error of a reader.
  void finish();

  // Error(kSoftware) where one of `tensors` was not asked for: then the forward would be another model's.
  void expect_all_loaded(const std::vector<const ShardTensor*>& tensors) const;
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  struct Task {
    const ShardTensor* source = nullptr;  // null: zeros
    Tensor target;
    Placement place;
    int64_t count = 0;  // elements
  };
  void add(Task task);
  void add_part(const ShardTensor& part, const Tensor& tensor, int64_t first);
  void add_gate_or_up(const ShardTensor& part, const Tensor& tensor, int64_t first);
  void reader_loop();
  void read(const Task& task, Loader& loader);
  static void clear(const Task& task, Loader& loader);
  bool take(Task& task);  // false: there is none and none will come
  void stop(std::exception_ptr error);

  const ShardSet& shards_;
  Backend& backend_;
  DType compute_;
  TensorMemory memory_;
  std::set<std::string> asked_for_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool complete_ = false;  // no task will be added
  std::exception_ptr error_;
  Progress& progress_;                // all above from mutex_ on are guarded by it
  std::vector<std::thread> readers_;  // last: they use all of the above
};

// The tensors of a stage: its layers and, at the ends, embedding, final norm and head. A tied embedding is in the first
// and the last.
std::vector<const ShardTensor*> stage_tensors(const ShardSet& shards, LayerRange layers, bool first_stage,
                                              bool last_stage);

// What they take on the device.
uint64_t held_bytes(const std::vector<const ShardTensor*>& tensors, DType compute);

}  // namespace lfm2
