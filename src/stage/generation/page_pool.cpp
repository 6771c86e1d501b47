#include "stage/generation/page_pool.h"

#include <xxhash.h>

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

namespace {
constexpr KeptPrefix kBroken{.number = -1};
}

uint64_t PagePool::content_hash(int64_t parent, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), static_cast<uint64_t>(parent));
}

PagePool::PagePool(int64_t pages, int64_t positions, bool keeps, Hash hash, const WindowPages* windows)
    : positions_(static_cast<size_t>(positions)),
      keeps_(keeps),
      hash_(hash),
      windows_(windows),
      pages_(static_cast<size_t>(pages)) {
  expect(positions > 0, "PagePool: pages without positions");
  for (int64_t page = pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t PagePool::allocate() {
  if (free_.empty()) {
    expect(!unheld_.empty(), "PagePool: more pages are taken than there are");
    forget(unheld_.front());
  }
  const int32_t page = free_.back();
  free_.pop_back();
  at(page).holders = 1;
  return page;
}

// Frees a kept page that no sequence holds.
void PagePool::forget(int32_t page) {
  Page& forgotten = at(page);
  auto [one, end] = found_by_.equal_range(hash_(forgotten.before, forgotten.tokens));
  while (one != end && one->second != page) ++one;
  expect(one != end, "PagePool: a kept page is not found");
  found_by_.erase(one);
  unheld_.erase(forgotten.place);
  forgotten = {};
  free_.push_back(page);
}

int32_t PagePool::find(int64_t before, std::span<const int32_t> tokens) const {
  const auto [begin, end] = found_by_.equal_range(hash_(before, tokens));
  const auto found = std::find_if(begin, end, [&](const auto& one) {
    return at(one.second).before == before && std::ranges::equal(at(one.second).tokens, tokens);
  });
  return found == end ? -1 : found->second;
}

std::vector<int32_t> PagePool::find(std::span<const int32_t> tokens) const {
  std::vector<int32_t> pages;
  int64_t before = 0;
  for (; keeps_ && tokens.size() >= positions_; tokens = tokens.subspan(positions_)) {
    const int32_t page = find(before, tokens.first(positions_));
    if (page < 0) break;
    pages.push_back(page);
    before = at(page).number;
  }
  if (windows_ != nullptr) windows_->keep_resumable(pages);
  return pages;
}

KeptPrefix PagePool::hold(int32_t page) {
  Page& held = at(page);
  expect(held.number > 0, "PagePool: a page without content is held");
  if (held.holders++ == 0) unheld_.erase(held.place);
  return {.number = held.number, .page = page};
}

void PagePool::release(std::span<const int32_t> pages) {
  for (auto page = pages.rbegin(); page != pages.rend(); ++page) {
    Page& released = at(*page);
    expect(released.holders > 0, "PagePool: a page that nobody holds is released");
    if (--released.holders > 0) continue;
    if (released.number > 0)
      released.place = unheld_.insert(unheld_.end(), *page);
    else
      free_.push_back(*page);
  }
}

KeptPrefix PagePool::keep(int32_t page, KeptPrefix before, std::span<const int32_t> tokens) {
  Page& kept = at(page);
  expect(kept.holders == 1 && kept.number == 0 && tokens.size() == positions_, "PagePool: a page that cannot be kept");
  // The previous page may have been reused meanwhile if another sequence had computed it.
  if (!keeps_ || before.number < 0 || (before.number > 0 && at(before.page).number != before.number)) return kBroken;
  const int32_t same = find(before.number, tokens);
  const bool replaced = same >= 0 && windows_ != nullptr && at(same).holders == 0 && !windows_->has(same);
  if (same >= 0 && !replaced) return {.number = at(same).number, .page = same};
  kept.number = replaced ? at(same).number : ++newest_;
  if (replaced) forget(same);
  kept.before = before.number;
  kept.tokens.assign(tokens.begin(), tokens.end());
  found_by_.emplace(hash_(kept.before, tokens), page);
  return {.number = kept.number, .page = page};
}

}  // namespace lfm2
