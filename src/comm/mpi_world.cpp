// MPI start and end, collectives with deadlines.
#include "comm/mpi_world.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string_view>
#include <thread>

#include "comm/wait.h"
#include "kernels/backend.h"

namespace lfm2 {

void check_mpi(int result, const char* call) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = "unknown error";
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ExitCode::kLost, fmt::format("{} failed: {}", call, text));
}

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string_view all(text);  // the rest says who built it, and when
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

MpiGroup::MpiGroup(const MpiGroup& parent, int color) : host_(parent.host()) {
  MPI_CHECK(MPI_Comm_split(parent.comm(), color, parent.rank(), &comm_));
  MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
  MPI_CHECK(MPI_Comm_size(comm_, &size_));
}

MpiGroup::~MpiGroup() {
  if (comm_ != MPI_COMM_NULL && comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
}

MpiWorld::MpiWorld(int* argc, char*** argv) {
  int provided = 0;
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  comm_ = MPI_COMM_WORLD;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  // Not from SLURM_LOCALID and the like: under mpirun inside a batch job those are 0 in every rank.
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local_));
  MPI_CHECK(MPI_Comm_rank(local_, &local_rank_));
  MPI_CHECK(MPI_Comm_size(local_, &local_size_));
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_CHECK(MPI_Get_processor_name(name, &length));
  host_ = name;

  const MPI_Aint bytes = local_rank_ == 0 ? static_cast<MPI_Aint>(sizeof(int32_t)) : 0;
  MPI_CHECK(
      MPI_Win_allocate_shared(bytes, sizeof(int32_t), MPI_INFO_NULL, local_, &failure_claimed_, &failure_window_));
  MPI_Aint size = 0;
  int unit = 0;
  MPI_CHECK(MPI_Win_shared_query(failure_window_, 0, &size, &unit, &failure_claimed_));
  if (local_rank_ == 0) *failure_claimed_ = 0;
  MPI_CHECK(MPI_Barrier(local_));
  processors_ = count_processors();
}

MpiWorld::~MpiWorld() {
  MPI_Win_free(&failure_window_);
  MPI_Comm_free(&local_);
  MPI_Finalize();
}

void MpiGroup::wait_for(MPI_Request request, double timeout_seconds, const char* what) const {
  const Wait wait(timeout_seconds, [] {});
  wait.until(
      [&] {
        int done = 0;
        MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        return done != 0;
      },
      [&] { return fmt::format("waiting for all ranks at \"{}\"", what); });
}

void MpiGroup::barrier(double timeout_seconds, const char* what) const {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Ibarrier(comm(), &request));
  wait_for(request, timeout_seconds, what);
}

void MpiGroup::broadcast(void* data, size_t bytes, int root, double timeout_seconds, const char* what) const {
  auto* next = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const int piece = static_cast<int>(std::min<size_t>(bytes, INT_MAX));
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Ibcast(next, piece, MPI_BYTE, root, comm(), &request));
    wait_for(request, timeout_seconds, what);
    next += piece;
    bytes -= static_cast<size_t>(piece);
  }
}

std::string MpiGroup::broadcast(const std::string& text, int root, double timeout_seconds, const char* what) const {
  uint64_t length = text.size();
  broadcast(&length, sizeof length, root, timeout_seconds, what);
  std::string result = text;
  result.resize(length);
  broadcast(result.data(), length, root, timeout_seconds, what);
  return result;
}

std::vector<std::string> MpiGroup::gather(const std::string& text, int root, double timeout_seconds,
                                          const char* what) const {
  const int length = static_cast<int>(text.size());
  std::vector<int> lengths(static_cast<size_t>(size_)), places(static_cast<size_t>(size_));
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, root, comm(), &request));
  wait_for(request, timeout_seconds, what);
  int total = 0;
  for (size_t i = 0; i < lengths.size(); ++i) {
    places[i] = total;
    total += lengths[i];
  }
  std::string all(static_cast<size_t>(total), '\0');
  MPI_CHECK(MPI_Igatherv(text.data(), length, MPI_CHAR, all.data(), lengths.data(), places.data(), MPI_CHAR, root,
                         comm(), &request));
  wait_for(request, timeout_seconds, what);
  std::vector<std::string> texts;
  if (rank_ != root) return texts;
  for (size_t i = 0; i < lengths.size(); ++i)
    texts.push_back(all.substr(static_cast<size_t>(places[i]), static_cast<size_t>(lengths[i])));
  return texts;
}

int64_t MpiWorld::sum_on_host(int64_t value) const {
  int64_t sum = 0;
  MPI_CHECK(MPI_Allreduce(&value, &sum, 1, MPI_INT64_T, MPI_SUM, local_));
  return sum;
}

bool MpiGroup::all_ranks(bool value) const {
  int mine = value ? 1 : 0, all = 0;
  MPI_CHECK(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm()));
  return all != 0;
}

double MpiGroup::smallest(double value, double timeout_seconds) const {
  double least = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&value, &least, 1, MPI_DOUBLE, MPI_MIN, comm(), &request));
  wait_for(request, timeout_seconds, "smallest value");
  return least;
}

double MpiGroup::clock_difference(double timeout_seconds) const {
  constexpr int kExchanges = 50, kTag = 2;
  const auto exchange = [&](int peer, double mine) {
    double theirs = 0;
    std::array<MPI_Request, 2> requests{};
    MPI_CHECK(MPI_Irecv(&theirs, 1, MPI_DOUBLE, peer, kTag, comm(), &requests[0]));
    MPI_CHECK(MPI_Isend(&mine, 1, MPI_DOUBLE, peer, kTag, comm(), &requests[1]));
    for (const MPI_Request request : requests) wait_for(request, timeout_seconds, "clock comparison");
    return theirs;
  };
  const auto answer = [&](int peer) {  // rank 0's side: the time at which the question came
    double question = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Irecv(&question, 1, MPI_DOUBLE, peer, kTag, comm(), &request));
    wait_for(request, timeout_seconds, "clock comparison");
    const double now = steady_seconds();
    MPI_CHECK(MPI_Isend(&now, 1, MPI_DOUBLE, peer, kTag, comm(), &request));
    wait_for(request, timeout_seconds, "clock comparison");
  };
  const std::string root_host = broadcast(host_, 0, timeout_seconds, "clock comparison");
  const bool same_clock = all_ranks(root_host == host_);  // a steady clock is the machine's
  if (same_clock) return 0;
  double difference = 0, fastest = std::numeric_limits<double>::infinity();
  for (int peer = 1; peer < size_; ++peer)
    for (int i = 0; i < kExchanges; ++i) {
      if (rank_ == 0) answer(peer);
      if (rank_ != peer) continue;
      const double asked = steady_seconds(), theirs = exchange(0, asked), answered = steady_seconds();
      if (answered - asked >= fastest) continue;
      fastest = answered - asked;
      difference = theirs - (asked + answered) / 2;
    }
  return difference;
}

int MpiWorld::count_processors() const {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<cpu_set_t> all(static_cast<size_t>(local_size_));
  MPI_CHECK(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, local_));
  const auto sharing =
      std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) { return CPU_EQUAL(&mine, &other) != 0; });
  return std::max(1, CPU_COUNT(&mine) / static_cast<int>(sharing));
}

bool MpiWorld::claim_failure() { return std::atomic_ref<int32_t>(*failure_claimed_).exchange(1) == 0; }

void MpiWorld::abort(ExitCode code) {
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  _exit(static_cast<int>(code));
}

}  // namespace lfm2
