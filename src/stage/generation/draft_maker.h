// The last stage's part of drafts by a DSpark drafter: holds the drafter's caches, fills them with each step, and makes
// the drafts that follow the newest tokens of sequences.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stage/dspark/dspark.h"
#include "stage/pipeline/batch_arrays.h"

namespace lfm2 {

struct DraftMakerSizes {
  CacheShape caches;    // of the target's layers
  int64_t longest = 0;  // cached positions of the longest sequence
  int64_t tokens = 0;   // of the largest step
  int64_t texts = 0;    // sequences that get drafts after one step
};

// Sizes that follow from these. The drafter's caches have the pages of the target's, with the same numbers, and further
// ones for each sequence slot: keys and values of a block lie after those of its text, also where the text's pages end.
class DraftRoom {
 public:
  DraftRoom(const DsparkConfig& config, const DraftMakerSizes& sizes);

  int64_t texts_in_pass() const { return texts_in_pass_; }  // more texts take several passes
  int64_t rows() const { return texts_in_pass_ * block_size_; }
  // Drafts of a text: those of a block that a step may verify.
  int64_t drafts() const { return std::min(block_size_, sizes_.caches.max_drafts); }
  int64_t passes() const { return (sizes_.texts + texts_in_pass_ - 1) / texts_in_pass_; }
  int64_t spare_pages() const { return pages_for(block_size_, sizes_.caches.page_size); }  // of each slot
  int64_t table_width() const { return pages_for(sizes_.longest, sizes_.caches.page_size) + spare_pages(); }
  size_t array_bytes() const;  // of a pass
  CacheShape caches() const;   // of the drafter
  const DraftMakerSizes& sizes() const { return sizes_; }

 private:
  DraftMakerSizes sizes_;
  int64_t block_size_, texts_in_pass_;
};

// Bytes on the device, besides the drafter's weights: of a page of the target's caches, and of everything else.
uint64_t draft_page_bytes(const DsparkConfig& config, DType compute, const CacheShape& caches);
uint64_t draft_maker_bytes(const DsparkConfig& config, const DraftMakerSizes& sizes, DType compute);

class DraftMaker {
 public:
  DraftMaker(Backend& backend, const Dspark& drafter, const DraftMakerSizes& sizes, DType compute);
  DraftMaker(const DraftMaker&) = delete;
  DraftMaker& operator=(const DraftMaker&) = delete;
  ~DraftMaker() { backend_.compute().drain(); }

  // Adds the tokens of a step to the context of their sequences. Called inside compute().submit(...).
  // taps [taps, tokens, hidden] act
  void append(const Tensor& taps, const Batch& batch) {
    drafter_.append(backend_.ops(), scratch_, taps, batch, &caches_);
  }
  // A text whose newest token is known. The steps up to its position are appended.
  struct Text {
    int32_t token = 0;
    int32_t slot = 0;
    int64_t position = 0;  // of the newest token, which has not been fed
    std::span<const int32_t> pages;
  };
  // Enqueues the drafts of these texts, at most DraftMakerSizes::texts. Those of an earlier call must be done.
  void enqueue(std::span<const Text> texts, int64_t tag);
  bool done() const { return done_->done(); }
  std::vector<int32_t> drafts(size_t text) const;  // of the last call, [DraftRoom::drafts()]

  // Of the last call's last pass, [drafts * texts, vocab], with the Markov head's part. For tests.
  const Tensor& logits() const { return tensors_.logits; }
  uint64_t cache_bytes() const { return caches_.bytes(); }
  uint64_t bytes() const { return memory_.bytes() + caches_.bytes() + scratch_bytes_ + transfers_.arrays.bytes(); }

 private:
  struct Recorded {
    int64_t times = 0;
    std::unique_ptr<Recording> work;
  };
  struct Transfers {
    Tensor drafts;           // [passes, drafts * texts of a pass] int32
    Buffer results;          // the same on the host
    Buffer arrays, staging;  // the index arrays of all passes on the device and on the host
  };
  void enqueue_pass(std::span<const Text> texts, int64_t pass, int64_t tag);
  Recording* recording_of(const Dspark::Blocks& blocks, int64_t pass, const std::function<void()>& work);

  Backend& backend_;
  const Dspark& drafter_;
  const DraftRoom room_;
  Caches caches_;
  TensorMemory memory_;
  size_t scratch_bytes_;
  Scratch scratch_;
  Dspark::Room tensors_;
  Transfers transfers_;
  std::unique_ptr<Event> done_;
  size_t texts_ = 0;                                       // of the last call
  std::map<std::array<int64_t, 3>, Recorded> recordings_;  // by pass, texts and longest text
};

}  // namespace lfm2
