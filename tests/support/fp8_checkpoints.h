// The golden checkpoints with fp8, read without the code under test, and changed copies of them.
#pragma once

#include "support/shards.h"
#include "support/weights_support.h"

namespace lfm2::test {

// The tensors of a safetensors file, in the order of their names.
inline std::vector<HandTensor> read_safetensors(const std::filesystem::path& path) {
  const std::string file = read_bytes(path);
  uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::vector<HandTensor> tensors;
  const Json header = Json::parse(file.substr(8, length));
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const uint64_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
    tensors.push_back({name, entry["dtype"], entry["shape"], file.substr(8 + length + begin, end - begin)});
  }
  return tensors;
}

inline std::vector<HandTensor> fp8_tensors(const std::string& golden_case) {
  return read_safetensors(golden_dir() / golden_case / "model.safetensors");
}

// Replaces `from` by `to` in the names of the tensors that end so.
inline void rename_endings(std::vector<HandTensor>& tensors, const std::string& from, const std::string& to) {
  for (HandTensor& tensor : tensors)
    if (tensor.name.ends_with(from)) tensor.name.replace(tensor.name.size() - from.size(), from.size(), to);
}

inline HandTensor take_tensor(std::vector<HandTensor>& tensors, const std::string& name) {
  HandTensor taken = find_tensor(tensors, name);
  std::erase_if(tensors, [&](const HandTensor& t) { return t.name == name; });
  return taken;
}

// Makes one tensor of those with these names, in this order.
inline void join_tensors(std::vector<HandTensor>& tensors, const std::vector<std::string>& names, const std::string& to,
                         std::vector<uint64_t> dims) {
  HandTensor joined{to, find_tensor(tensors, names.front()).dtype, std::move(dims), ""};
  for (const std::string& name : names) joined.bytes += take_tensor(tensors, name).bytes;
  tensors.push_back(std::move(joined));
}

inline void expect_same_tensors(std::vector<HandTensor> a, std::vector<HandTensor> b) {
  const auto by_name = [](const HandTensor& x, const HandTensor& y) { return x.name < y.name; };
  std::sort(a.begin(), a.end(), by_name);
  std::sort(b.begin(), b.end(), by_name);
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].name, b[i].name);
    EXPECT_EQ(a[i].dtype, b[i].dtype) << a[i].name;
    EXPECT_EQ(a[i].dims, b[i].dims) << a[i].name;
    EXPECT_TRUE(a[i].bytes == b[i].bytes) << a[i].name;
  }
}

}  // namespace lfm2::test
