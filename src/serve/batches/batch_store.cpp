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

BatchStore::BatchStore(fs::path folder, Room room, std::chrono::milliseconds patience)
    : folder_(std::move(folder)), room_(room) {
  if (::mkdir(folder_.c_str(), kFolderMode) != 0 && errno != EEXIST)
    throw_failed_call(ExitCode::kCantCreate, "mkdir", folder_, errno);
  const fs::path lock = folder_ / "lock";
  lock_ = FileDescriptor(::open(lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode));
  if (lock_.get() < 0) throw_failed_call(ExitCode::kCantCreate, "open", lock, errno);
  const auto end = std::chrono::steady_clock::now() + patience;
  while (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    if (std::chrono::steady_clock::now() > end)
      throw Error(ExitCode::kCantCreate,
                  fmt::format("--batch-dir {}: another server uses this folder, expected one that no other server uses",
                              folder_.string()));
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
      used_[read.owner] += kObjectBytes;
      (is_batch(id) ? batches_ : files_).emplace(id, std::move(read));
    } catch (const std::exception& error) {
      say(fmt::format("lfm2_stage: {}: not an object of a server, left out: {}", path.string(), error.what()));
      unread.insert(id);
    }
  }
  for (const fs::path& path : others) {
    const std::string name = path.filename(), id = name.substr(0, name.find('.'));
    const fs::path ending = path.extension();
    const bool of_run = ending == ".journal" || ending == ".output" || ending == ".errors";
    const Stored* owner = nullptr;
    const auto look_up = [&owner](const ById& all, const std::string& object) {
      if (const auto found = all.find(object); found != all.end()) owner = &found->second;
    };
    if (ending == kDataEnding) {
      // A batch that was about to end may have renamed its answers already.
      look_up(batches_, "batch_" + id.substr(5, id.find('-', 5) - 5));
      if (owner != nullptr && is_over(owner->object)) owner = nullptr;
      look_up(files_, id);
    } else if (of_run) {
      look_up(batches_, id);
    }
    std::error_code ignored;
    if (owner != nullptr || unread.contains(id))
      used_[owner != nullptr ? owner->owner : ""] += size_of(path);
    else
      fs::remove(path, ignored);
  }
}

BatchStore::Stored* BatchStore::find(ById& all, std::string_view id, std::string_view owner) {
  const auto found = all.find(id);
  return found != all.end() && found->second.owner == owner ? &found->second : nullptr;
}

bool BatchStore::has_room(std::string_view owner, uint64_t bytes) const {
  const auto own = used_.find(owner);
  uint64_t all = 0;
  for (const auto& [other, used] : used_) all += used;
  const uint64_t more = kObjectBytes + bytes;
  return all + more <= room_.all && (own != used_.end() ? own->second : 0) + more <= room_.of_owner;
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
  if (all.insert_or_assign(id, stored).second) used_[stored.owner] += kObjectBytes;
}

BatchStore::Stored& BatchStore::add_file(const std::string& id, const std::string& owner, const std::string& name,
                                         std::string_view purpose, std::string_view content,
                                         std::optional<int64_t> lifetime) {
  write_privately(path(id, kDataEnding), content);
  used_[owner] += content.size();
  try {
    return add_file(id, owner, name, purpose, content.size(), lifetime);
  } catch (...) {
    remove_counted(id, kDataEnding, owner);
    throw;
  }
}

BatchStore::Stored& BatchStore::add_file_in_place(const std::string& id, const std::string& owner,
                                                  const std::string& name, std::string_view purpose,
                                                  std::optional<int64_t> lifetime) {
  return add_file(id, owner, name, purpose, size_of(path(id, kDataEnding)), lifetime);
}

BatchStore::Stored& BatchStore::add_file(const std::string& id, const std::string& owner, const std::string& name,
                                         std::string_view purpose, uint64_t bytes, std::optional<int64_t> lifetime) {
  const int64_t now = std::time(nullptr);
  save(files_, id,
       {owner,
        {{"id", id},
         {"object", "file"},
         {"bytes", bytes},
         {"created_at", now},
         {"expires_at", lifetime ? OrderedJson(now + *lifetime) : OrderedJson()},
         {"filename", name},
         {"purpose", purpose},
         {"status", "processed"},
         {"status_details", nullptr}}});
  return files_.find(id)->second;
}

void BatchStore::remove(std::string_view id, std::string_view ending) {
  remove_counted(id, ending, batches_.find(id)->second.owner);
}

void BatchStore::remove_counted(std::string_view id, std::string_view ending, const std::string& owner) {
  const fs::path gone = path(id, ending);
  const uint64_t bytes = size_of(gone);
  std::error_code error;
  if (fs::remove(gone, error)) used_[owner] -= std::min(used_[owner], bytes);
  if (error) throw_failed_call(ExitCode::kIo, "unlink", gone, error.value());
}

void BatchStore::remove_file(std::string_view id) {
  const fs::path object = path(id, kObjectEnding);
  std::error_code error;
  fs::remove(object, error);
  if (error) throw_failed_call(ExitCode::kIo, "unlink", object, error.value());
  const auto file = files_.find(id);
  const std::string owner = file->second.owner;
  files_.erase(file);
  used_[owner] -= std::min(used_[owner], kObjectBytes);
  remove_counted(id, kDataEnding, owner);
}

std::string BatchStore::user_of(std::string_view file) const {
  for (const auto& [id, batch] : batches_)
    if (!is_over(batch.object) && batch.object.at("input_file_id") == file) return id;
  return "";
}

void BatchStore::remove_expired() {
  const int64_t now = std::time(nullptr);
  std::vector<std::string> expired;
  for (const auto& [id, file] : files_)
    if (const OrderedJson& time = file.object.value("expires_at", OrderedJson());
        time.is_number() && time <= now && user_of(id).empty())
      expired.push_back(id);
  for (const std::string& id : expired) remove_file(id);
}

BatchStore::Stored& BatchStore::save_batch(const std::string& owner, const OrderedJson& object) {
  const std::string id = object.at("id");
  save(batches_, id, {owner, object});
  return batches_.find(id)->second;
}

}  // namespace lfm2::serve
