// Communicators of two ranks over MPI. The rank that makes the id is the sender; the receiver greets it, and it
// answers.
#include <mpi.h>
#include <nccl.h>

#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>

#include "fake_cuda.h"

namespace {

constexpr int kGreetingTag = 1000, kDataTag = 2000;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int world_rank() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

struct Id {
  int maker, number;
};

}  // namespace

struct ncclComm {
  int rank = 0;  // 0 sends, 1 receives
  int peer = -1;
  int tag = 0;
  double may_start = 0;
  MPI_Request greeting = MPI_REQUEST_NULL;
  bool started = false;
  int transfers = 0;

  int word = 0;  // content of the greeting
  bool start() {
    if (started) return true;
    if (fake_fault("init-never") >= 0 || now() < may_start) return false;
    int done = 0;
    if (greeting == MPI_REQUEST_NULL && rank == 0)
      MPI_Irecv(&word, 1, MPI_INT, MPI_ANY_SOURCE, kGreetingTag + tag, MPI_COMM_WORLD, &greeting);
    if (greeting == MPI_REQUEST_NULL && rank == 1) {
      word = world_rank();
      MPI_Send(&word, 1, MPI_INT, peer, kGreetingTag + tag, MPI_COMM_WORLD);
      MPI_Irecv(&word, 1, MPI_INT, peer, kGreetingTag + tag, MPI_COMM_WORLD, &greeting);
    }
    MPI_Test(&greeting, &done, MPI_STATUS_IGNORE);
    if (done == 0) return false;
    if (rank == 0) {
      peer = word;
      MPI_Send(&word, 1, MPI_INT, peer, kGreetingTag + tag, MPI_COMM_WORLD);
    }
    return started = true;
  }

  // Starts one send or receive, which `post` posts.
  template <class Post>
  ncclResult_t transfer(cudaStream_t stream, const Post& post) {
    const int number = ++transfers;
    const double error = fake_fault("transfer-error"), never = fake_fault("transfer-never");
    if (error >= 0 && number >= error) return ncclInternalError;
    enqueue_fake_work(stream, [this, post, request = MPI_REQUEST_NULL, posted = false,
                               hangs = never >= 0 && number >= never]() mutable {
      if (hangs || !started) return false;
      if (!posted) post(&request);
      posted = true;
      int done = 0;
      MPI_Test(&request, &done, MPI_STATUS_IGNORE);
      return done != 0;
    });
    return ncclSuccess;
  }
};

namespace {

int bytes_of(size_t count, ncclDataType_t type) {
  return static_cast<int>(count) * (type == ncclFloat16 || type == ncclBfloat16 ? 2 : 4);
}

}  // namespace

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static int made = 0;
  const Id mine{world_rank(), made++};
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, &mine, sizeof mine);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (ranks != 2 || config->blocking != 0) return ncclInvalidArgument;
  Id from{};
  std::memcpy(&from, id.internal, sizeof from);
  *comm = new ncclComm;
  (*comm)->rank = rank;
  (*comm)->peer = rank == 1 ? from.maker : -1;
  // Each of its own: in a ring two ranks may be joined twice, and a rank's two edges hear from everybody.
  constexpr int kMaxRanks = 32;
  (*comm)->tag = from.number * kMaxRanks + from.maker;
  (*comm)->may_start = now() + fake_fault("init-delay");
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const double error = fake_fault("async-error");
  if (fake_fault("init-error") >= 0)
    *state = ncclSystemError;
  else if (error >= 0 && comm->transfers >= error)
    *state = ncclRemoteError;
  else
    *state = comm->start() ? ncclSuccess : ncclInProgress;
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return ncclSuccess;
}

// Prints a line, by which tests see that it was called.
ncclResult_t ncclCommAbort(ncclComm_t) {
  std::fputs("fake NCCL: ncclCommAbort\n", stderr);
  while (fake_fault("abort-never") >= 0) std::this_thread::sleep_for(std::chrono::seconds(1));
  return ncclSuccess;
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) {
  return comm->transfer(stream, [=](MPI_Request* request) {
    MPI_Isend(from, bytes_of(count, type), MPI_BYTE, comm->peer, kDataTag + comm->tag, MPI_COMM_WORLD, request);
  });
}

ncclResult_t ncclRecv(void* into, size_t count, ncclDataType_t type, int, ncclComm_t comm, cudaStream_t stream) {
  return comm->transfer(stream, [=](MPI_Request* request) {
    MPI_Irecv(into, bytes_of(count, type), MPI_BYTE, comm->peer, kDataTag + comm->tag, MPI_COMM_WORLD, request);
  });
}

ncclResult_t ncclGetVersion(int* version) {
  *version = 22800;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSystemError:
      return "unhandled system error";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "internal error";
  }
}

const char* ncclGetLastError(ncclComm_t) { return "injected by FAKE_CUDA"; }

}  // extern "C"
