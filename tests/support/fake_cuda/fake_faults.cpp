// The faults that FAKE_CUDA asks for; see README.md.
#include <mpi.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "fake_cuda.h"

double fake_fault(const char* name) {
  int this_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &this_rank);
  const char* text = std::getenv("FAKE_CUDA");
  std::istringstream list(text == nullptr ? "" : text);
  for (std::string one; std::getline(list, one, ',');) {
    std::istringstream parts(one);
    std::string rank, what, number = "0";
    std::getline(parts, rank, ':');
    std::getline(parts, what, ':');
    std::getline(parts, number, ':');
    if (std::stoi(rank) == this_rank && what == name) return std::stod(number);
  }
  return -1;
}
