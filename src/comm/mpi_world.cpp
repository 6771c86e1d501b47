// Start and end of MPI, and collectives that the watchdog can end.
#include "comm/mpi_world.h"

#include <sched.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <limits>
#include <new>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/standard_streams.h"
#include "comm/wait.h"
#include "kernels/backend.h"

namespace lfm2 {

namespace {
constexpr auto kMaxAbortTime = std::chrono::seconds(3);
}

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
  const std::string_view all(text);  // further lines name the builder and the date
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

MpiGroup::MpiGroup(const MpiGroup& parent, int color) : host_(parent.host()), watchdog_(parent.watchdog_) {
  MPI_CHECK(MPI_Comm_split(parent.comm(), color, parent.rank(), &comm_));
  MPI_CHECK(MPI_Comm_rank(comm_, &rank_));
  MPI_CHECK(MPI_Comm_size(comm_, &size_));
}

MpiGroup::~MpiGroup() {
  if (comm_ != MPI_COMM_NULL && comm_ != MPI_COMM_WORLD) MPI_Comm_free(&comm_);
}

// The head of the shared window; the stamps of each rank follow.
struct MpiWorld::Shared {
  std::atomic<int32_t> failure_claimed;
  char rest[64 - sizeof(std::atomic<int32_t>)];
};

MpiWorld::MpiWorld(int* argc, char*** argv, Watchdog::Settings settings) {
  int provided = 0;
  MPI_CHECK(MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided));
  MPI_CHECK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  comm_ = MPI_COMM_WORLD;
  MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank_));
  MPI_CHECK(MPI_Comm_size(MPI_COMM_WORLD, &size_));
  // Not SLURM_LOCALID or the like: under mpirun inside a batch job those are 0 on every rank.
  MPI_CHECK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local_));
  MPI_CHECK(MPI_Comm_rank(local_, &local_rank_));
  MPI_CHECK(MPI_Comm_size(local_, &local_size_));
  char name[MPI_MAX_PROCESSOR_NAME] = "";
  int length = 0;
  MPI_CHECK(MPI_Get_processor_name(name, &length));
  host_ = name;

  share_memory();
  count_processors();
  if (local_size_ < size_) settings.stamps_file += "." + host_;
  auto* board = reinterpret_cast<RankStamps*>(shared_.load() + 1);
  owned_watchdog_ = std::make_unique<Watchdog>(
      std::span(board, static_cast<size_t>(local_size_)), static_cast<size_t>(local_rank_), std::move(settings),
      Watchdog::Ending{.claim = [this] { return claim_failure(); },
                       .say = [this](const std::string& text) { say_failure(text); },
                       .end = [this](ExitCode code) { abort(code); }});
  watchdog_ = owned_watchdog_.get();
}

namespace {

std::string free_shared_memory() {
  constexpr const char* kFolder = "/dev/shm";
  struct statvfs status {};
  if (::statvfs(kFolder, &status) != 0) return fmt::format("{}: {}", kFolder, std::strerror(errno));
  return fmt::format("{} has {} kB free", kFolder, status.f_bavail * status.f_frsize / 1024);
}

}  // namespace

void MpiWorld::share_memory() {
  const size_t bytes = sizeof(Shared) + static_cast<size_t>(local_size_) * sizeof(RankStamps);
  Shared* shared = nullptr;
  const InsideMpi inside;
  if (MPI_Win_allocate_shared(local_rank_ == 0 ? static_cast<MPI_Aint>(bytes) : 0, 1, MPI_INFO_NULL, local_, &shared,
                              &window_) != MPI_SUCCESS)
    throw Error(ExitCode::kUnavailable,
                fmt::format("shared memory for the ranks of this host: {}, expected some MB, as by --shm-size of a "
                            "container",
                            free_shared_memory()));
  MPI_Aint size = 0;
  int unit = 0;
  MPI_CHECK(MPI_Win_shared_query(window_, 0, &size, &unit, &shared));
  if (local_rank_ == 0) new (shared) Shared{};
  (new (reinterpret_cast<RankStamps*>(shared + 1) + local_rank_) RankStamps)->start(rank_);
  shared_ = shared;
  MPI_CHECK(MPI_Barrier(local_));
}

MpiWorld::~MpiWorld() {
  try {
    barrier(0, "end of the job");  // no rank reads another rank's stamps after this
  } catch (const Error& error) {
    if (claim_failure()) say_failure(error.what());
    abort(error.code());
  }
  shared_ = nullptr;
  watchdog_->leave_board(local_rank_);  // waits for a watchdog that has read the pointer before
  MPI_Win_free(&window_);
  MPI_Comm_free(&local_);
  MPI_Finalize();
}

void MpiGroup::wait_for(MPI_Request request, double timeout_seconds, const char* what) const {
  const Wait wait(*watchdog_, [] { return false; });
  wait.until(
      [&] {
        int done = 0;
        MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        return done != 0;
      },
      {.phase = Phase::kMeet, .label = what, .limit_seconds = timeout_seconds});
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

// Receives from one rank after another, since all texts together may be longer than MPI can count.
std::vector<std::string> MpiGroup::gather(const std::string& text, int root, double timeout_seconds,
                                          const char* what) const {
  if (rank_ != root) {
    std::string mine = text;
    move_text(mine, root, timeout_seconds, what, MPI_Isend);
    return {};
  }
  std::vector<std::string> texts(static_cast<size_t>(size_));
  texts[static_cast<size_t>(root)] = text;
  for (int rank = 0; rank < size_; ++rank)
    if (rank != root) move_text(texts[static_cast<size_t>(rank)], rank, timeout_seconds, what, MPI_Irecv);
  return texts;
}

// Moves the bytes in pieces that MPI can count. `move` is MPI_Isend or MPI_Irecv.
template <class Move>
void MpiGroup::move_bytes(void* data, size_t bytes, int peer, double timeout_seconds, const char* what,
                          Move move) const {
  constexpr int kTag = 3;
  constexpr size_t kPiece = size_t{1} << 30;
  for (size_t done = 0; done < bytes; done += kPiece) {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(move(static_cast<std::byte*>(data) + done, static_cast<int>(std::min(kPiece, bytes - done)), MPI_BYTE,
                   peer, kTag, comm(), &request));
    wait_for(request, timeout_seconds, what);
  }
}

// Moves the length of the text, then the text.
template <class Move>
void MpiGroup::move_text(std::string& text, int peer, double timeout_seconds, const char* what, Move move) const {
  uint64_t length = text.size();
  move_bytes(&length, sizeof length, peer, timeout_seconds, what, move);
  text.resize(length);
  move_bytes(text.data(), text.size(), peer, timeout_seconds, what, move);
}

std::string MpiGroup::pass(std::string text, int from, int to, double timeout_seconds, const char* what) const {
  if (from == to) return text;
  if (rank_ == from) move_text(text, to, timeout_seconds, what, MPI_Isend);
  if (rank_ == to) move_text(text, from, timeout_seconds, what, MPI_Irecv);
  return text;
}

void MpiGroup::pass(void* data, size_t bytes, int from, int to, double timeout_seconds, const char* what) const {
  if (from == to) return;
  if (rank_ == from) move_bytes(data, bytes, to, timeout_seconds, what, MPI_Isend);
  if (rank_ == to) move_bytes(data, bytes, from, timeout_seconds, what, MPI_Irecv);
}

int64_t MpiWorld::sum_on_host(int64_t value) const {
  int64_t sum = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&value, &sum, 1, MPI_INT64_T, MPI_SUM, local_, &request));
  wait_for(request, 0, "sum on the host");
  return sum;
}

bool MpiGroup::all_ranks(bool value, double timeout_seconds) const {
  int mine = value ? 1 : 0, all = 0;
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_CHECK(MPI_Iallreduce(&mine, &all, 1, MPI_INT, MPI_LAND, comm(), &request));
  wait_for(request, timeout_seconds, "agreement");
  return all != 0;
}

bool MpiGroup::on_one_host() const {
  MPI_Comm local = MPI_COMM_NULL;
  int local_size = 0;
  MPI_CHECK(MPI_Comm_split_type(comm(), MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &local));
  MPI_CHECK(MPI_Comm_size(local, &local_size));
  MPI_CHECK(MPI_Comm_free(&local));
  return local_size == size_;
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
  const auto answer = [&](int peer) {  // rank 0 replies with the time at which the message arrived
    double question = 0;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_CHECK(MPI_Irecv(&question, 1, MPI_DOUBLE, peer, kTag, comm(), &request));
    wait_for(request, timeout_seconds, "clock comparison");
    const double now = steady_seconds();
    MPI_CHECK(MPI_Isend(&now, 1, MPI_DOUBLE, peer, kTag, comm(), &request));
    wait_for(request, timeout_seconds, "clock comparison");
  };
  const std::string root_host = broadcast(host_, 0, timeout_seconds, "clock comparison");
  const bool same_clock = all_ranks(root_host == host_);  // all ranks of one machine share its steady clock
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

void MpiWorld::count_processors() {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  sched_getaffinity(0, sizeof mine, &mine);
  std::vector<cpu_set_t> all(static_cast<size_t>(local_size_));
  MPI_CHECK(MPI_Allgather(&mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, local_));
  processors_ = find_processor_limits();
  sharing_ = static_cast<int>(
      std::count_if(all.begin(), all.end(), [&](const cpu_set_t& other) { return CPU_EQUAL(&mine, &other) != 0; }));
}

bool MpiWorld::claim_failure() {
  Shared* const shared = shared_;
  return shared == nullptr || shared->failure_claimed.exchange(1) == 0;
}

void MpiWorld::say_failure(const std::string& text) const {
  say(fmt::format("lfm2_stage: rank {} ({}): {}", rank_, host_, text));
}

void MpiWorld::abort(ExitCode code) {
  // The abort itself may hang in MPI, or in a lock that another thread never releases. Then this thread ends the
  // process.
  try {
    std::thread([code] {
      std::this_thread::sleep_for(kMaxAbortTime);
      _exit(static_cast<int>(code));
    }).detach();
  } catch (const std::system_error&) {  // the fault may be that no thread can be created
  }
  std::fflush(nullptr);
  MPI_Abort(MPI_COMM_WORLD, static_cast<int>(code));
  _exit(static_cast<int>(code));
}

}  // namespace lfm2
