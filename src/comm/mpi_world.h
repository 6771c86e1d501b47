// The MPI job: who this rank is, what all ranks share, and how all of them end together. Owned by main.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/watchdog.h"
#include "kernels/error.h"

namespace lfm2 {

// Throws Error(kLost) with the failed call and MPI's own text.
void check_mpi(int result, const char* call);
#define MPI_CHECK(call) ::lfm2::check_mpi((call), #call)

std::string mpi_library_version();  // as the library names itself: "Open MPI v4.1.4"

// Some ranks of the job in order, and what they do together. While a collective goes on the rank stands at `what`;
// where it does nothing else for `timeout_seconds` (0: the watchdog's own limit) and waits for nobody who gets on, the
// watchdog ends it with Error(kLost).
class MpiGroup {
 public:
  // The ranks of `parent` with the same `color`, in their order there. Collective over `parent`.
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
  // From one rank to another one, which both call it; the text that was sent, on the one that receives.
  std::string pass(std::string text, int from, int to, double timeout_seconds, const char* what) const;
  // The same for values, into place: no rank holds more than what it sends or receives.
  void pass(void* data, size_t bytes, int from, int to, double timeout_seconds, const char* what) const;
  bool all_ranks(bool value) const;
  double smallest(double value, double timeout_seconds) const;  // of all ranks

  // What to add to this rank's steady_seconds() to get rank 0's: from the fastest of some exchanged messages, good to
  // half their time.
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

// All ranks.
class MpiWorld : public MpiGroup {
 public:
  // The watchdog starts here; where ranks are on several hosts, each host's goes to a file of its own.
  MpiWorld(int* argc, char*** argv, Watchdog::Settings watchdog);
  ~MpiWorld() override;  // once all ranks are there: MPI_Finalize

  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  int64_t sum_on_host(int64_t value) const;

  // Processors this rank may use, shared out among the ranks of this host that may use the same ones.
  int fair_share_of_processors() const { return processors_; }

  // True for the first rank of this host that asks: it alone reports, so that one cause gives one line.
  bool claim_failure();
  void say_failure(const std::string& text) const;  // one line on stderr, with this rank's name
  // Ends all ranks. Returns to nobody, not even where MPI hangs.
  [[noreturn]] void abort(ExitCode code);

 private:
  struct Shared;                 // by the ranks of this host
  int count_processors() const;  // collective
  void share_memory();

  int local_rank_ = 0, local_size_ = 1, processors_ = 1;
  MPI_Comm local_ = MPI_COMM_NULL;
  MPI_Win window_ = MPI_WIN_NULL;
  Shared* shared_ = nullptr;                  // null once each rank speaks for itself alone
  std::unique_ptr<Watchdog> owned_watchdog_;  // last: its thread uses the above
};

}  // namespace lfm2
