// Finds the shards in a folder.
#pragma once

#include <filesystem>
#include <vector>

namespace lfm2 {

// Whether a file of this name in a folder of shards counts as a shard: *.h5, except hidden files such as the ._NAME
// that macOS writes beside NAME.
bool is_shard_name(const std::filesystem::path& name);

// The shards of a folder, sorted by name. Error(kNoInput) if there is none; Error(kData), with the command that makes
// shards, if `folder` is a model.
std::vector<std::filesystem::path> list_shards(const std::filesystem::path& folder);

}  // namespace lfm2
