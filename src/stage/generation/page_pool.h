// The first stage's allocator of KV cache pages, which includes the prefix cache. A page is held by the sequences that
// use it. A full page is kept: it can be found by its tokens and all tokens before them. A new sequence that begins
// with the same tokens holds that page, too, instead of computing them again. A kept page that no sequence holds stays
// until its memory is needed; the least recently held page is reused first.
//
// Hash collisions do no harm: find() compares the page's tokens and the number of its predecessor's content. These
// numbers are never reused.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "stage/pipeline/window_pages.h"

namespace lfm2 {

// Identifies a chain of kept pages, which begins with the first page of a text, by its last page.
struct KeptPrefix {
  int64_t number = 0;  // of the last page's content, never reused; 0: no page yet, -1: the chain is broken
  int32_t page = -1;
};

class PagePool {
 public:
  using Hash = uint64_t (*)(int64_t parent, std::span<const int32_t> tokens);
  static uint64_t content_hash(int64_t parent, std::span<const int32_t> tokens);

  // `pages` pages of `positions` positions each. If `keeps` is false, no page is ever kept. `windows`: see find().
  PagePool(int64_t pages, int64_t positions, bool keeps, Hash hash = PagePool::content_hash,
           const WindowPages* windows = nullptr);

  // The number of pages that no sequence holds; all of them can be allocated.
  int64_t available() const { return static_cast<int64_t>(free_.size() + unheld_.size()); }
  int64_t kept() const { return static_cast<int64_t>(found_by_.size()); }
  int64_t holders(int32_t page) const { return at(page).holders; }

  // Allocates a page to one holder. If no page without content is left, the least recently held kept page loses its
  // content.
  int32_t allocate();
  // The kept pages of the longest cached prefix of `tokens` after which layers with a window can continue.
  std::vector<int32_t> find(std::span<const int32_t> tokens) const;
  // Adds a holder to a kept page. Returns the chain that ends with it.
  KeptPrefix hold(int32_t page);
  // Removes a holder from the pages of one sequence, given in their order. The last pages are reused first, because a
  // page cannot be found without its predecessors.
  void release(std::span<const int32_t> pages);
  // Keeps a held page, which has just been filled with the `tokens` that follow the chain `before`. Returns the chain
  // that ends with this content. If another page already has the same content, find() still returns that page, unless
  // no sequence holds it and its keys and values are gone from layers with a window.
  KeptPrefix keep(int32_t page, KeptPrefix before, std::span<const int32_t> tokens);

 private:
  struct Page {
    int64_t holders = 0;
    // Of a kept page: the number of its content, that of the content before it, and its tokens.
    int64_t number = 0, before = 0;
    std::vector<int32_t> tokens = {};
    std::list<int32_t>::iterator place = {};  // position in unheld_, if the page is kept and not held
  };

  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  int32_t find(int64_t before, std::span<const int32_t> tokens) const;  // -1: not found
  void forget(int32_t page);

  const size_t positions_;
  const bool keeps_;
  const Hash hash_;
  const WindowPages* const windows_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;                            // pages without content, allocated from the back
  std::list<int32_t> unheld_;                            // kept pages that are not held, the least recently held first
  std::unordered_multimap<uint64_t, int32_t> found_by_;  // kept pages by hash of content
  int64_t newest_ = 0;                                   // the last content number used
};

}  // namespace lfm2
