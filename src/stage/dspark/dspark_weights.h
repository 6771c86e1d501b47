// Loads the weights of a DSpark drafter to a device and owns them.
#pragma once

#include <string>
#include <vector>

#include "kernels/tensor_memory.h"
#include "stage/dspark/dspark_files.h"
#include "stage/model/weight_source.h"

namespace lfm2 {

// Names weights as a model's stage does, so that Stage composes the drafter's layers; embedding and LM head are the
// target's. A drafter is small next to its target, so one thread reads it.
class DsparkWeights : public WeightSource {
 public:
  // `embedding` and `head` of the target, on the device; the embedding of a target whose head is tied is both.
  DsparkWeights(const DsparkFiles& files, Backend& backend, DType compute, const Tensor& embedding, const Tensor& head)
      : files_(files), backend_(backend), compute_(compute), embedding_(embedding), head_(head), memory_(backend) {}

  Tensor load(const std::vector<std::string>& names, std::initializer_list<int64_t> dims, Rows rows) override;
  Tensor load_for_products(const std::vector<std::string>& names, std::initializer_list<int64_t> dims,
                           Rows rows) override;
  // The weights of products get the device's layout. Called after the last load.
  void finish();
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  // A tensor of the file, in the type that the device holds.
  struct Part {
    std::vector<std::byte> bytes;
    int64_t rows = 0, columns = 0;
  };
  Part read(const std::string& name, DType held) const;
  void pair_halves(const std::string& name, Part& part, size_t element_bytes) const;

  const DsparkFiles& files_;
  Backend& backend_;
  DType compute_;
  Tensor embedding_, head_;
  TensorMemory memory_;
  std::vector<Tensor> tiled_;  // rows until finish()
};

// The name in a drafter's file of a weight that a stage of a model calls `name`.
std::string dspark_name(const std::string& name);

}  // namespace lfm2
