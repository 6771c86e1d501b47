#include "stage/io/output_place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>

#include "base/checked_file.h"
#include "base/error.h"
#include "stage/io/journal.h"

namespace lfm2 {

namespace {

// The output gets its name by rename(), which in a folder with the sticky bit cannot replace another user's file.
void expect_replaceable(const std::filesystem::path& path, const std::filesystem::path& folder) {
  struct stat file {};
  struct stat around {};
  const uid_t user = ::geteuid();
  if (user == 0 || ::lstat(path.c_str(), &file) != 0 || ::stat(folder.c_str(), &around) != 0) return;
  if ((around.st_mode & S_ISVTX) != 0 && file.st_uid != user && around.st_uid != user)
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: belongs to user {}, and {} has the sticky bit, so user {} cannot replace it: expected "
                            "another name",
                            path.string(), file.st_uid, folder.string(), user));
}

void expect_room_for_name(const std::filesystem::path& path) {
  const std::filesystem::path longest = new_journal_path(journal_path(path));
  struct stat status {};
  if (::lstat(longest.c_str(), &status) != 0 && errno == ENAMETOOLONG)
    throw Error(ExitCode::kCantCreate,
                fmt::format("{}: too long a name, expected one to which this may be added while a run writes it: {}",
                            path.string(), longest.string().substr(path.string().size())));
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : ".";
}

// A file without a name. Empty if the file system does not support this, but the user may create files.
FileDescriptor make_probe(const std::filesystem::path& path) {
  const std::filesystem::path folder = folder_of(path);
  FileDescriptor probe(::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600));
  if (probe.get() >= 0) return probe;
  int error = errno;
  // EISDIR: from kernels that do not know the flag.
  if (error == EOPNOTSUPP || error == EISDIR) error = ::access(folder.c_str(), W_OK | X_OK) == 0 ? 0 : errno;
  if (error != 0) throw_failed_call(ExitCode::kCantCreate, "cannot be created: open", path, error);
  return {};
}

// flock returns an error on NFS without a lock daemon, and on Lustre mounted without flock.
bool has_locks(FileDescriptor probe, const std::filesystem::path& path) {
  if (probe.get() < 0) {
    const std::filesystem::path name = temporary_name(path);
    probe = FileDescriptor(::open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    if (probe.get() < 0) throw_failed_call(ExitCode::kCantCreate, "cannot be created: open", path, errno);
    ::unlink(name.c_str());
  }
  return ::flock(probe.get(), LOCK_EX | LOCK_NB) == 0 || errno == EWOULDBLOCK;
}

}  // namespace

void check_output_place(const std::filesystem::path& path) {
  expect_name_of_file(path);
  expect_room_for_name(path);
  expect_replaceable(path, folder_of(path));
  make_probe(path);
}

OutputPlace find_output_place(const std::filesystem::path& path) {
  check_output_place(path);
  OutputPlace place{.has_locks = has_locks(make_probe(path), path)};
  struct statvfs status {};
  if (::statvfs(folder_of(path).c_str(), &status) != 0)
    throw_failed_call(ExitCode::kCantCreate, "statvfs", folder_of(path), errno);
  place.free_bytes = status.f_bavail * status.f_frsize;
  place.files = status.f_files;
  place.free_files = status.f_favail;
  rlimit limit{};
  place.largest_file_bytes = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
  return place;
}

}  // namespace lfm2
