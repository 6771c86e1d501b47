/* client_fs FOLDER MOUNT_POINT [OPTION...]: a FUSE file system that shows FOLDER. Each mount has a page cache of its
   own, as each host has that mounts one NFS export; mmap and fallocate work. Two mounts of one folder stand in for two
   hosts in tests/hosts/two_clients.sh. */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static const char* folder;

/* The file behind `path`, in memory that the thread's call after the next reuses: a rename has two names. */
static const char* behind(const char* path) {
  static __thread char names[2][4096];
  static __thread int turn;
  turn = !turn;
  snprintf(names[turn], sizeof names[turn], "%s%s", folder, path);
  return names[turn];
}
static int result(int64_t value) { return value < 0 ? -errno : (int)value; }
static int opened(int fd, struct fuse_file_info* file) {
  if (fd < 0) return -errno;
  file->fh = (uint64_t)fd;
  return 0;
}
static int fd_of(struct fuse_file_info* file) { return (int)file->fh; }

/* Nothing about names and sizes is remembered: only pages are. */
static void* begin(struct fuse_conn_info* connection, struct fuse_config* config) {
  (void)connection;
  config->use_ino = 1;
  config->entry_timeout = config->attr_timeout = config->negative_timeout = 0;
  return NULL;
}
static int get_attributes(const char* path, struct stat* status, struct fuse_file_info* file) {
  return result(file ? fstat(fd_of(file), status) : lstat(behind(path), status));
}
static int open_file(const char* path, struct fuse_file_info* file) {
  return opened(open(behind(path), file->flags & ~O_NOFOLLOW), file);
}
static int create_file(const char* path, mode_t mode, struct fuse_file_info* file) {
  return opened(open(behind(path), file->flags | O_CREAT, mode), file);
}
static int close_file(const char* path, struct fuse_file_info* file) {
  (void)path;
  return result(close(fd_of(file)));
}
static int read_file(const char* path, char* into, size_t bytes, off_t offset, struct fuse_file_info* file) {
  (void)path;
  return result(pread(fd_of(file), into, bytes, offset));
}
static int write_file(const char* path, const char* from, size_t bytes, off_t offset, struct fuse_file_info* file) {
  (void)path;
  return result(pwrite(fd_of(file), from, bytes, offset));
}
static int reserve(const char* path, int mode, off_t offset, off_t bytes, struct fuse_file_info* file) {
  (void)path;
  return result(fallocate(fd_of(file), mode, offset, bytes));
}
static int sync_file(const char* path, int data_only, struct fuse_file_info* file) {
  (void)path, (void)data_only;
  return result(fsync(fd_of(file)));
}
static int resize(const char* path, off_t bytes, struct fuse_file_info* file) {
  return result(file ? ftruncate(fd_of(file), bytes) : truncate(behind(path), bytes));
}
static int rename_file(const char* from, const char* to, unsigned flags) {
  (void)flags;
  return result(rename(behind(from), behind(to)));
}
static int remove_file(const char* path) { return result(unlink(behind(path))); }
static int may_access(const char* path, int mode) { return result(access(behind(path), mode)); }
static int list_folder(const char* path, void* into, fuse_fill_dir_t add, off_t offset, struct fuse_file_info* file,
                       enum fuse_readdir_flags flags) {
  (void)offset, (void)file, (void)flags;
  DIR* open_folder = opendir(behind(path));
  if (!open_folder) return -errno;
  for (struct dirent* entry; (entry = readdir(open_folder));) add(into, entry->d_name, NULL, 0, 0);
  closedir(open_folder);
  return 0;
}
static int sync_folder(const char* path, int data_only, struct fuse_file_info* file) {
  (void)path, (void)data_only, (void)file;
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 3) return 64;
  folder = argv[1];
  argv[1] = argv[0];
  const struct fuse_operations operations = {.init = begin,
                                             .getattr = get_attributes,
                                             .open = open_file,
                                             .create = create_file,
                                             .release = close_file,
                                             .read = read_file,
                                             .write = write_file,
                                             .fallocate = reserve,
                                             .fsync = sync_file,
                                             .truncate = resize,
                                             .rename = rename_file,
                                             .unlink = remove_file,
                                             .access = may_access,
                                             .readdir = list_folder,
                                             .fsyncdir = sync_folder};
  return fuse_main(argc - 1, argv + 1, &operations, NULL);
}
