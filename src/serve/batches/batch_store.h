// The files and batches of a server, in a folder that outlives it. Each is an object of OpenAI's interface with the
// client that owns it. Used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/checked_file.h"
#include "base/json/json.h"

namespace lfm2::serve {

// The folder has, for an object ID, ID.json, and ID.data for the content of a file. A batch that runs also has
// ID.journal, ID.output and ID.errors (BatchRun). Ids are made here, so no client's text is part of a path.
class BatchStore {
 public:
  struct Stored {
    std::string owner;
    OrderedJson object;
  };
  using ById = std::map<std::string, Stored, std::less<>>;

  // The most bytes in the folder, and those of them that one owner may fill.
  struct Room {
    uint64_t all, of_owner;
  };

  // Creates the folder if it is missing, reads what it has, and removes what no object names. Error(kCantCreate) for a
  // folder that cannot be used, or that another server still uses after `patience`: the ranks of a killed launcher take
  // a moment to end.
  BatchStore(std::filesystem::path folder, Room room, std::chrono::milliseconds patience = std::chrono::seconds(15));

  ById& files() { return files_; }
  ById& batches() { return batches_; }
  // Null for another owner's, too.
  static Stored* find(ById& all, std::string_view id, std::string_view owner);

  static std::string new_id(std::string_view prefix);
  std::filesystem::path path(std::string_view id, std::string_view ending) const;
  // Whether there is room for `bytes` bytes of a new file, or more of a file.
  bool has_room(std::string_view owner, uint64_t bytes) const;
  void count(const std::string& owner, uint64_t bytes) { used_[owner] += bytes; }  // that were appended for a batch

  // Each of these throws Error(kIo) if the system fails, and then has changed nothing.
  // A file whose content is given, or is in place already. It expires after `lifetime` seconds, or never.
  Stored& add_file(const std::string& id, const std::string& owner, const std::string& name, std::string_view purpose,
                   std::string_view content, std::optional<int64_t> lifetime = {});
  Stored& add_file_in_place(const std::string& id, const std::string& owner, const std::string& name,
                            std::string_view purpose, std::optional<int64_t> lifetime = {});
  void remove_file(std::string_view id);
  // The batch that has not ended and whose input is this file; "" if there is none.
  std::string user_of(std::string_view file) const;
  void remove_expired();  // files that no batch uses
  // Writes the object of a batch, which `batches` may not have yet.
  Stored& save_batch(const std::string& owner, const OrderedJson& object);
  void remove(std::string_view id, std::string_view ending);

 private:
  static constexpr uint64_t kObjectBytes = 4096;  // that each object counts, as its file takes a block
  void load();
  void save(ById& all, const std::string& id, const Stored& stored);
  Stored& add_file(const std::string& id, const std::string& owner, const std::string& name, std::string_view purpose,
                   uint64_t bytes, std::optional<int64_t> lifetime);
  void remove_counted(std::string_view id, std::string_view ending, const std::string& owner);

  const std::filesystem::path folder_;
  const Room room_;
  FileDescriptor lock_;
  std::map<std::string, uint64_t, std::less<>> used_;  // bytes, by owner
  ById files_, batches_;
};

// Whether a batch, as the store has it, has ended.
bool is_over(const OrderedJson& batch);

// Opens or creates a file that only this user may read, for reading and writing. Error(kIo).
FileDescriptor open_private(const std::filesystem::path& path);

}  // namespace lfm2::serve
