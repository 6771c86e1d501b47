/* To be preloaded: makes Open MPI claim that it takes GPU memory. CLAIMS_CUDA=RANK:FAULT:N lets that rank fail from its
   Nth message of hidden states on: send-error, receive-error, send-crash, receive-crash, send-abort, receive-abort (as
   Open MPI ends where a copy of CUDA fails), send-never, receive-never. CLAIMS_CUDA=only:RANK: that rank alone claims.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int MPIX_Query_cuda_support(void) {
  const char* text = getenv("CLAIMS_CUDA");
  int rank = 0, only = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return text == NULL || sscanf(text, "only:%d", &only) != 1 || rank == only;
}

int MPI_T_cvar_get_index(const char* name, int* index) {
  if (strcmp(name, "opal_cuda_support") == 0) return MPI_T_ERR_INVALID_NAME; /* in this library it would say no */
  return PMPI_T_cvar_get_index(name, index);
}

static int messages;

static int fault(const char* direction, const char* kind) {
  const char* text = getenv("CLAIMS_CUDA");
  char asked_direction[16], asked_kind[16];
  int asked_rank, asked_message, rank = 0;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return text != NULL &&
         sscanf(text, "%d:%15[a-z]-%15[a-z]:%d", &asked_rank, asked_direction, asked_kind, &asked_message) == 4 &&
         asked_rank == rank && messages >= asked_message && strcmp(asked_direction, direction) == 0 &&
         strcmp(asked_kind, kind) == 0;
}

/* Elements of two or four bytes: of all messages, those of hidden states alone have them. */
static int is_hidden(MPI_Datatype type) { return type == MPI_UINT16_T || type == MPI_UINT32_T; }

/* Whether the call is to return `*result` and do nothing more. */
static int fails(const char* direction, MPI_Request* request, int* result) {
  static int nothing;
  ++messages;
  if (fault(direction, "error")) return *result = MPI_ERR_OTHER, 1;
  if (fault(direction, "crash")) raise(SIGSEGV);
  if (fault(direction, "abort")) abort();
  if (!fault(direction, "never")) return 0;
  *result = PMPI_Irecv(&nothing, 1, MPI_INT, 0, 77, MPI_COMM_SELF, request); /* nobody sends this */
  return 1;
}

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  int result;
  if (is_hidden(type) && fails("send", request, &result)) return result;
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  int result;
  if (is_hidden(type) && fails("receive", request, &result)) return result;
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}
