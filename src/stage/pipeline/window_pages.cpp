#include "stage/pipeline/window_pages.h"

#include <algorithm>

#include "base/error.h"

namespace lfm2 {

WindowPages::WindowPages(const CacheShape& shape) : shape_(shape), pages_(static_cast<size_t>(shape.pages)) {
  for (int64_t page = shape.window_pages; page-- > 0;) free_.push_back(static_cast<int32_t>(page));
}

int32_t WindowPages::allocate() {
  if (free_.empty()) {
    const Unheld& reused = passed_.empty() ? ends_ : passed_;
    expect(!reused.empty(), "WindowPages: sequences hold more pages than there are");
    forget(reused.begin()->second);
  }
  const int32_t own = free_.back();
  free_.pop_back();
  return own;
}

void WindowPages::hold(int32_t page) {
  Page& held = at(page);
  held.resumed = has(page);
  if (held.holders++ > 0) return;
  most_held_ = std::max(most_held_, ++held_);
  if (held.resumed)
    unheld(held).erase(held.released);
  else
    held.own = allocate();
}

void WindowPages::release(int32_t page, After after) {
  Page& released = at(page);
  expect(released.holders > 0, "WindowPages: a page that nobody holds is released");
  if (--released.holders > 0) return;
  --held_;
  released.ended = after == After::kEnd || released.resumed;
  released.released = ++releases_;
  unheld(released).emplace(releases_, page);
  if (!shape_.keeps_prefixes) forget(page);
}

void WindowPages::forget(int32_t page) {
  Page& forgotten = at(page);
  expect(forgotten.holders == 0, "WindowPages: a held page gets other content");
  if (forgotten.own < 0) return;
  unheld(forgotten).erase(forgotten.released);
  free_.push_back(forgotten.own);
  forgotten = {};
}

void WindowPages::keep_resumable(std::vector<int32_t>& prefix) const {
  int64_t length = std::ssize(prefix);
  for (int64_t page = length; page-- > shape_.first_window_page(length * shape_.page_size);)
    if (!has(prefix[static_cast<size_t>(page)])) length = page;  // and its window begins further to the front
  prefix.resize(static_cast<size_t>(length));
}

}  // namespace lfm2
