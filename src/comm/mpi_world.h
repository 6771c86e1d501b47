// The MPI job: who this rank is, what all ranks share, and how all of them end together. Owned by main.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/error.h"

namespace lfm2 {

// Throws Error(kLost) with the failed call and MPI's own text.
void check_mpi(int result, const char* call);
#define MPI_CHECK(call) ::lfm2::check_mpi((call), #call)

std::string mpi_library_version();  // as the library names itself: "Open MPI v4.1.4"

// Some ranks of the job in order, and what they do together. Each collective ends within `timeout_seconds` (0: no
// limit); Error(kLost) names `what`.
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

  void barrier(double timeout_seconds, const char* what) const;
  void broadcast(void* data, size_t bytes, int root, double timeout_seconds, const char* what) const;
  std::string broadcast(const std::string& text, int root, double timeout_seconds, const char* what) const;
  std::vector<std::string> gather(const std::string& text, int root, double timeout_seconds, const char* what) const;
  bool all_ranks(bool value) const;
  double smallest(double value, double timeout_seconds) const;  // of all ranks

  // What to add to this rank's steady_seconds() to get rank 0's: from the fastest of some exchanged messages, good to
  // half their time.
  double clock_difference(double timeout_seconds) const;

 protected:
  MpiGroup() = default;  // MpiWorld fills it in
  void wait_for(MPI_Request request, double timeout_seconds, const char* what) const;

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  std::string host_;
};

// All ranks.
class MpiWorld : public MpiGroup {
 public:
  MpiWorld(int* argc, char*** argv);
  ~MpiWorld() override;  // MPI_Finalize

  int local_rank() const { return local_rank_; }  // among the ranks of this host
  int local_size() const { return local_size_; }
  int64_t sum_on_host(int64_t value) const;

  // Processors this rank may use, shared out among the ranks of this host that may use the same ones.
  int fair_share_of_processors() const { return processors_; }

  // True for the first rank of this host that asks: it alone reports, so that one cause gives one line.
  bool claim_failure();
  [[noreturn]] void abort(ExitCode code);

 private:
  int count_processors() const;  // collective

  int local_rank_ = 0, local_size_ = 1, processors_ = 1;
  MPI_Comm local_ = MPI_COMM_NULL;
  MPI_Win failure_window_ = MPI_WIN_NULL;
  int32_t* failure_claimed_ = nullptr;  // in memory shared by the ranks of this host
};

}  // namespace lfm2
