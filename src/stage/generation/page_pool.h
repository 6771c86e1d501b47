// The pages of the caches, as the first stage allocates them to sequences, and the prefix cache in them. A page is held
// by the sequences that use it. A full page is kept: it is found by its tokens and those before it. A sequence that
// begins with the same tokens holds it, too, instead of computing them again. A kept page that nobody holds remains
// until its place is needed; the least recently held page goes first.
//
// What is found is exact, whatever the hash does: a kept page names the kept page before it by a number that never
// comes again, and has its own tokens, and both are compared.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace lfm2 {

// The end of a chain of kept pages, from the first page of a text on.
struct KeptPrefix {
  int64_t number = 0;  // of the last page's content: never used again; 0: no page yet, -1: the chain is broken
  int32_t page = -1;
};

class PagePool {
 public:
  using Hash = uint64_t (*)(int64_t parent, std::span<const int32_t> tokens);
  static uint64_t content_hash(int64_t parent, std::span<const int32_t> tokens);

  // `pages` pages of `positions` positions each. Where `keeps` is false, no page is ever kept.
  PagePool(int64_t pages, int64_t positions, bool keeps, Hash hash = PagePool::content_hash);

  // Pages that nobody holds; each can be allocated.
  int64_t available() const { return static_cast<int64_t>(free_.size() + unheld_.size()); }
  int64_t kept() const { return static_cast<int64_t>(found_by_.size()); }
  int64_t holders(int32_t page) const { return at(page).holders; }

  // Gives a page without content to a holder; a kept one loses its content where there is no other.
  int32_t allocate();
  // The kept pages of the first tokens, up to the first page that is missing.
  std::vector<int32_t> find(std::span<const int32_t> tokens) const;
  // One more holder for a kept page. Returns the chain that ends with it.
  KeptPrefix hold(int32_t page);
  // The pages of one sequence, in their order, lose a holder. Later ones will go first: without those before them
  // they are not found.
  void release(std::span<const int32_t> pages);
  // Keeps a held page, which has just been filled with the `tokens` that follow the chain `before`. Returns the chain
  // that ends with this content. If another page already has the same content, find() still returns that page.
  KeptPrefix keep(int32_t page, KeptPrefix before, std::span<const int32_t> tokens);

 private:
  struct Page {
    int64_t holders = 0;
    // Of a kept page: the number of its content, that of the content before it, and its tokens.
    int64_t number = 0, before = 0;
    std::vector<int32_t> tokens = {};
    std::list<int32_t>::iterator place = {};  // in unheld_, where it is kept and nobody holds it
  };

  Page& at(int32_t page) { return pages_[static_cast<size_t>(page)]; }
  const Page& at(int32_t page) const { return pages_[static_cast<size_t>(page)]; }
  int32_t find(int64_t before, std::span<const int32_t> tokens) const;  // -1: there is none
  void forget(int32_t page);

  const size_t positions_;
  const bool keeps_;
  const Hash hash_;
  std::vector<Page> pages_;
  std::vector<int32_t> free_;                            // pages without content, allocated from the back
  std::list<int32_t> unheld_;                            // kept pages that nobody holds, the longest unused first
  std::unordered_multimap<uint64_t, int32_t> found_by_;  // the kept pages, by the hashes of their contents
  int64_t newest_ = 0;                                   // the largest number that a content had
};

}  // namespace lfm2
