// The pages of sliding attention layers, which are fewer than those of the caches. A page of the caches has one of
// them, with its own number, while the window of some sequence reaches it. With the prefix cache it has it until
// another page needs it: a cached prefix can be continued only where the window before its end is still there. Pages
// that a sequence only passed are reused before those with which one ended or that a prefix was found to end with, and
// of these the least recently held one first.
//
// Each rank has its own WindowPages, which its SequenceTable changes with every step.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "stage/model/caches.h"

namespace lfm2 {

class WindowPages {
 public:
  explicit WindowPages(const CacheShape& shape);

  bool has(int32_t page) const { return at(page).own >= 0; }
  int32_t of(int32_t page) const { return at(page).own; }
  int64_t held() const { return held_; }            // by sequences
  int64_t most_held() const { return most_held_; }  // since the start

  // Adds a holder to a page of the caches. Its keys and values are those written before, if has() is true.
  void hold(int32_t page);
  // Whether a sequence continues after the page that it releases.
  enum class After : uint8_t { kPassed, kEnd };
  void release(int32_t page, After after);
  // A page of the caches gets other content. Nobody holds it.
  void forget(int32_t page);
  // Shortens a cached prefix, given as its pages, to the longest one that a sequence can continue.
  void keep_resumable(std::vector<int32_t>& prefix) const;

 private:
  struct Page {
    int32_t own = -1;
    int64_t holders = 0;
    bool resumed = false;  // whether a sequence found it with a prefix
    bool ended = false;    // if it is not held: whether it is in ends_
    int64_t released = 0;  // its key there or in passed_
  };
  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  using Unheld = std::map<int64_t, int32_t>;  // pages of the caches in the order of their releases
  Unheld& unheld(const Page& page) { return page.ended ? ends_ : passed_; }
  int32_t allocate();

  CacheShape shape_;
  std::vector<Page> pages_;    // [pages of the caches]
  std::vector<int32_t> free_;  // allocated from the back
  Unheld passed_, ends_;
  int64_t held_ = 0, most_held_ = 0, releases_ = 0;
};

}  // namespace lfm2
