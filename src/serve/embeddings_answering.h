// An answer of /v1/embeddings: an embedding for each of the inputs.
#pragma once

#include <string>
#include <vector>

#include "openai/openai_request.h"
#include "serve/open_answer.h"

namespace lfm2::serve {

class EmbeddingsAnswering : public OpenAnswer {
 public:
  // The requests have the numbers `first_sample` and following.
  EmbeddingsAnswering(const EmbeddingsRequest& request, int32_t first_sample, http::Responder responder,
                      std::string model, Clock::time_point deadline);

  bool take(const Drawn& drawn) override;
  bool done() const override { return left_ == 0; }
  bool finish() override;
  bool large() const override;

 private:
  const bool base64_;
  const std::string model_;
  int64_t tokens_ = 0;                      // of all inputs
  std::vector<std::vector<float>> states_;  // by input; empty where it is still to come
  int64_t left_;
};

}  // namespace lfm2::serve
