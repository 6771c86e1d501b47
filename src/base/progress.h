// A progress bar on a terminal, and nothing in a log: one line on stderr, redrawn at most ten times a second. Units are
// bytes, samples or tokens. Debian and Ubuntu package no C++ library for this.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace lfm2 {

enum class ProgressMode { kAuto, kOn, kOff };  // kAuto: on where stderr is a terminal

class Progress {
 public:
  enum class Unit { kBytes, kSamples, kTokens };

  // add() calls `pulse` each time, on the thread that did the work.
  Progress(std::string title, uint64_t total, Unit unit, ProgressMode mode = ProgressMode::kAuto,
           std::function<void()> pulse = {});
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // ends the line

  void add(uint64_t amount);

 private:
  void draw(std::chrono::steady_clock::time_point now);

  std::string title_;
  uint64_t total_, done_ = 0;
  Unit unit_;
  bool shown_;
  std::function<void()> pulse_;
  std::chrono::steady_clock::time_point start_, drawn_;
};

}  // namespace lfm2
