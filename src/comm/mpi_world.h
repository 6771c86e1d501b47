// The MPI job: this rank's number, the collectives of all ranks, and how all of them end. Owned by main.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/words.h"
#include "comm/fatal_signals.h"
#include "comm/launch.h"
#include "comm/watchdog.h"

namespace lfm2 {

// Throws Error(kLost) with the failed call and MPI's own text.
void check_mpi(int result, const char* call);
#define MPI_CHECK(call) ::lfm2::check_mpi((static_cast<void>(::lfm2::InsideMpi()), (call)), #call)

std::string mpi_library_version();  // as the library reports it: "Open MPI v4.1.4"

// Some ranks of the job, in order, and their collectives. During a collective the rank's stamp is kMeet with the label
// `what`. Error(kLost) if for `timeout_seconds` (0: the watchdog's own limit) neither this rank nor the rank it waits
// for makes progress.
class MpiGroup {
 public:
  // The ranks of `parent` with the same `color`, in the order of `parent`. Collective over `parent`.
  MpiGroup(const MpiGroup& parent, int color);
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;
  virtual ~MpiGroup();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& host() const { return host_; }
  MPI_Comm comm() const { return comm_; }
  Watchdog& watchdog() const { return *watchdog_; }

  void barrier(double timeout_seconds, const char* what) const;
  void broadcast(void* data, size_t bytes, int root, double timeout_seconds, const char* what) const;
  std::string broadcast(const std::string& text, int root, double timeout_seconds, const char* what) const;
  std::vector<std::string> gather(const std::string& text, int root, double timeout_seconds, const char* what) const;
  // Sends a text from rank `from` to rank `to`; both call this. Returns the text that was sent on rank `to`,
  // and `text` on all others.
  std::string pass(std::string text, int from, int to, double timeout_seconds, const char* what) const;
  // The same three for one value that base/words.h can encode. Its lists and texts have fewer than 2^31 elements.
  template <class T>
  T broadcast_value(const T& value, int root, double timeout_seconds, const char* what) const {
    return from_bytes<T>(broadcast(to_bytes(value), root, timeout_seconds, what));
  }
  template <class T>
  std::vector<T> gather_values(const T& value, int root, double timeout_seconds, const char* what) const {
    std::vector<T> values;
    for (const std::string& bytes : gather(to_bytes(value), root, timeout_seconds, what))
      values.push_back(from_bytes<T>(bytes));
    return values;
  }
  template <class T>
  T pass_value(const T& value, int from, int to, double timeout_seconds, const char* what) const {
    return from_bytes<T>(pass(to_bytes(value), from, to, timeout_seconds, what));
  }
  // For many values, in place: a rank needs no memory besides the values that it sends or receives.
  void pass(void* data, size_t bytes, int from, int to, double timeout_seconds, const char* what) const;
  bool all_ranks(bool value, double timeout_seconds = 0) const;
  bool on_one_host() const;                                     // whether all ranks are on one host; collective
  double smallest(double value, double timeout_seconds) const;  // the smallest `value` of all ranks

  // What to add to this rank's steady_seconds() to get rank 0's. Measured in several exchanges of messages; the error
  // is at most half the time of the fastest one.
  double clock_difference(double timeout_seconds) const;

 protected:
  MpiGroup() = default;  // MpiWorld fills it in
  void wait_for(MPI_Request request, double timeout_seconds, const char* what) const;
  template <class Move>
  void move_bytes(void* data, size_t bytes, int peer, double timeout_seconds, const char* what, Move move) const;
  template <class Move>
  void move_text(std::string& text, int peer, double timeout_seconds, const char* what, Move move) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::string host_;
  Watchdog* watchdog_ = nullptr;
};

// The group of all ranks of the job.
class MpiWorld : public MpiGroup {
 public:
  // Starts the watchdog. If ranks are on several hosts, each host writes its stamps to a separate file.
  MpiWorld(int* argc, char*** argv, Watchdog::Settings watchdog);
  ~MpiWorld() override;  // waits for all ranks, then MPI_Finalize

  int local_rank() const { return local_rank_; }  // this rank's number among the ranks of its host
  int local_size() const { return local_size_; }
  int64_t sum_on_host(int64_t value) const;

  // The processors that this rank may use, divided by the number of ranks that share them, or by `at_once` if only that
  // number of ranks computes at a time.
  int fair_share_of_processors(int64_t at_once = std::numeric_limits<int64_t>::max()) const {
    const auto of = [&](int ranks) { return static_cast<int>(std::clamp<int64_t>(at_once, 1, ranks)); };
    return processors_.share(of(sharing_), of(local_size_));
  }
  // What makes that share smaller than the affinity mask alone would.
  std::vector<std::string> processor_limits() const { return processors_.reasons(sharing_, local_size_); }

  // True for the first rank of this host that calls this. Only that rank reports, so that one cause prints one line.
  bool claim_failure();
  void say_failure(const std::string& text) const;  // one line on stderr, with this rank's name
  // Ends all ranks. Never returns, not even if MPI hangs.
  [[noreturn]] void abort(ExitCode code);

 private:
  struct Shared;            // memory that the ranks of this host share
  void count_processors();  // collective
  void share_memory();

  int local_rank_ = 0, local_size_ = 1;
  ProcessorLimits processors_;  // that this rank may use
  int sharing_ = 1;             // number of ranks that share these processors
  MPI_Comm local_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  // Null after this rank has left the shared memory. The watchdog's thread reads it, too.
  std::atomic<Shared*> shared_ = nullptr;
  std::unique_ptr<Watchdog> owned_watchdog_;  // last, because its thread uses the members above
};

}  // namespace lfm2
