#include "serve/batches/batch_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <random>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/standard_streams.h"

namespace lfm2::serve {

namespace {

namespace fs = std::filesystem;

constexpr mode_t kFolderMode = 0700, kFileMode = 0600;
constexpr uint64_t kMaxObjectBytes = 1 << 20;
constexpr std::string_view kObjectEnding = ".json", kDataEnding = ".data";

void write_privately(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  if (::chmod(file.temporary_path().c_str(), kFileMode) != 0) throw_failed_call(ExitCode::kIo, "chmod", path, errno);
  file.write(std::as_bytes(std::span(content)));
  file.commit();
}

// Of a file that is new or may be missing.
uint64_t size_of(const fs::path& path) {
  std::error_code missing;
  const uintmax_t bytes = fs::file_size(path, missing);
  return missing ? 0 : bytes;
}

bool is_batch(std::string_view id) { return id.starts_with("batch_"); }

}  // namespace

bool is_over(const OrderedJson& batch) {
  const std::string& status = batch.at("status").get_ref<const std::string&>();
  return status == "completed" || status == "failed" || status == "cancelled";
}

FileDescriptor open_private(const fs::path& path) {
  FileDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (file.get() < 0) throw_failed_call(ExitCode::kIo, "open", path, errno);
  return file;
}

BatchStore::BatchStore(fs::path folder, uint64_t max_bytes, std::chrono::milliseconds patience)
    : folder_(std::move(folder)), max_bytes_(max_bytes) {
  if (::mkdir(folder_.c_str(), kFolderMode) != 0 && errno != EEXIST)
    throw_failed_call(ExitCode::kCantCreate, "mkdir", folder_, errno);
  const fs::path lock = folder_ / "lock";
  lock_ = FileDescriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (lock_.get() < 0) throw_failed_call(ExitCode::kCantCreate, "open", lock, errno);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > end)
      throw Error(
          ExitCode::kCantCreate,
          fmt::format("--batch-dir {}: another server uses it, expected a folder of its own", folder_.string()));
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  load();
}

// An object is whole or absent, because it is renamed into place. Whatever has the name of a content, but no object,
// was cut off before its object was written.
void BatchStore::load() {
  std::vector<fs::path> others;
  std::set<std::string> unread;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
    const fs::path& path = entry.path();
    const std::string id = path.stem();
    if (!id.starts_with("file-") && !is_batch(id)) continue;
    if (path.extension() != kObjectEnding) {
      others.push_back(path);
      continue;
    }
    try {
      OrderedJson stored = parse_ordered_json(read_text_file(path, kMaxObjectBytes), path.string());
      Stored read{stored.at("owner").get<std::string>(), std::move(stored.at("object"))};
      if (read.object.at("id").get<std::string>() != id) throw Error(ExitCode::kData, path.string() + ": another id");
      (is_batch(id) ? batches_ : files_).emplace(id, std::move(read));
      used_ += kObjectBytes;
    } catch (const std::exception& error) {
      say(fmt::format("lfm2_stage: {}: not an object of a server, left out: {}", path.string(), error.what()));
      unread.insert(id);
    }
  }
  for (const fs::path& path : others) {
    const std::string name = path.filename(), id = name.substr(0, name.find('.'));
    const fs::path ending = path.extension();
    const bool of_run = ending == ".journal" || ending == ".output" || ending == ".errors";
    const bool known = ending == kDataEnding ? files_.contains(id) : of_run && batches_.contains(id);
    // A batch that was about to end may have renamed its answers already.
    const auto batch = batches_.find("batch_" + id.substr(5, id.find('-', 5) - 5));
    const bool of_batch = ending == kDataEnding && batch != batches_.end() && !is_over(batch->second.object);
    std::error_code ignored;
    if (known || of_batch || unread.contains(id))
      used_ += size_of(path);
    else
      fs::remove(path, ignored);
  }
}

BatchStore::Stored* BatchStore::find(ById& all, std::string_view id, std::string_view owner) {
  const auto found = all.find(id);
  return found != all.end() && found->second.owner == owner ? &found->second : nullptr;
}

std::string BatchStore::new_id(std::string_view prefix) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}{:08x}", prefix, random(), random(), random(), random());
}

fs::path BatchStore::path(std::string_view id, std::string_view ending) const {
  return folder_ / fmt::format("{}{}", id, ending);
}

void BatchStore::save(ById& all, const std::string& id, const Stored& stored) {
  write_privately(path(id, kObjectEnding), json_text(OrderedJson{{"owner", stored.owner}, {"object", stored.object}}));
  if (all.insert_or_assign(id, stored).second) used_ += kObjectBytes;
}

BatchStore::Stored& BatchStore::add_file(const std::string& id, const std::string& owner, const std::string& name,
                                         std::string_view purpose, std::string_view content) {
  write_privately(path(id, kDataEnding), content);
  used_ += content.size();
  return add_file(id, owner, name, purpose, content.size());
}

BatchStore::Stored& BatchStore::add_file_in_place(const std::string& id, const std::string& owner,
                                                  const std::string& name, std::string_view purpose) {
  return add_file(id, owner, name, purpose, size_of(path(id, kDataEnding)));
}

BatchStore::Stored& BatchStore::add_file(const std::string& id, const std::string& owner, const std::string& name,
                                         std::string_view purpose, uint64_t bytes) {
  save(files_, id,
       {owner,
        {{"id", id},
         {"object", "file"},
         {"bytes", bytes},
         {"created_at", std::time(nullptr)},
         {"expires_at", nullptr},
         {"filename", name},
         {"purpose", purpose},
         {"status", "processed"},
         {"status_details", nullptr}}});
  return files_.find(id)->second;
}

void BatchStore::remove(std::string_view id, std::string_view ending) {
  const fs::path gone = path(id, ending);
  const uint64_t bytes = size_of(gone);
  std::error_code error;
  if (fs::remove(gone, error)) used_ -= std::min(used_, bytes);
  if (error) throw_failed_call(ExitCode::kIo, "unlink", gone, error.value());
}

void BatchStore::remove_file(std::string_view id) {
  const fs::path object = path(id, kObjectEnding);
  std::error_code error;
  fs::remove(object, error);
  if (error) throw_failed_call(ExitCode::kIo, "unlink", object, error.value());
  used_ -= std::min(used_, kObjectBytes);
  files_.erase(files_.find(id));
  remove(id, kDataEnding);
}

BatchStore::Stored& BatchStore::save_batch(const std::string& owner, const OrderedJson& object) {
  const std::string id = object.at("id");
  save(batches_, id, {owner, object});
  return batches_.find(id)->second;
}

}  // namespace lfm2::serve
