// Reports the quantisation error: a line for each weight, and one for each kind of weight.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "weights-tools/model/quantizing_source.h"

namespace lfm2 {

class QuantizeReport {
 public:
  void add(const TensorSpec& weight, const Fp8Error& error);
  void print() const;  // to stdout

 private:
  struct Weight {
    int64_t layer;
    std::string name, shape;
    Fp8Error error;
  };
  struct Kind {
    size_t weights = 0;
    Fp8Error error;
  };
  std::vector<Weight> weights_;
  std::map<std::string, Kind> kinds_;  // "feed_forward.experts.w1": the name without layer and expert
};

}  // namespace lfm2
