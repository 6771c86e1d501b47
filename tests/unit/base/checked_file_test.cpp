// Reads that stay inside the file, and files that are either whole or absent.
#include "base/checked_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/thread_pool.h"
#include "support/weights_support.h"

namespace lfm2 {
namespace {

using test::expect_error;
using test::read_bytes;
using test::TemporaryFolder;
using test::write_bytes;

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

std::string read(const CheckedFile& file, uint64_t offset, size_t count) {
  std::string text(count, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(CheckedFileTest, ReadsWhatIsThere) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  const CheckedFile file(folder / "f");
  EXPECT_EQ(file.size(), 10u);
  EXPECT_EQ(read(file, 0, 10), "0123456789");
  EXPECT_EQ(read(file, 7, 3), "789");
  EXPECT_EQ(read(file, 10, 0), "");
}

TEST(CheckedFileTest, RefusesReadsOutside) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  const CheckedFile file(folder / "f");
  for (const auto& [offset, count] :
       std::vector<std::pair<uint64_t, size_t>>{{0, 11}, {10, 1}, {11, 0}, {UINT64_MAX, 1}, {UINT64_MAX - 4, 10}})
    expect_error([&, offset = offset, count = count] { read(file, offset, count); }, ExitCode::kData,
                 {"/f", "10 bytes"});
}

TEST(CheckedFileTest, NoticesAFileThatShrinks) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  const CheckedFile file(folder / "f");
  ASSERT_EQ(::truncate((folder / "f").c_str(), 4), 0);
  expect_error([&] { read(file, 0, 10); }, ExitCode::kData, {"/f", "shrank"});
}

TEST(CheckedFileTest, RefusesWhatIsNoRegularFile) {
  const TemporaryFolder folder;
  expect_error([&] { CheckedFile file(folder / "absent"); }, ExitCode::kNoInput, {"/absent"});
  expect_error([&] { CheckedFile file(folder.path()); }, ExitCode::kData, {folder.path().string(), "regular"});
  expect_error([&] { CheckedFile file("/dev/null"); }, ExitCode::kData, {"/dev/null", "regular"});
}

// As root, a finished file would take the place of the device.
TEST(CheckedFileTest, FilesDoNotReplaceDevicesAndPipes) {
  const TemporaryFolder folder;
  const std::filesystem::path pipe = folder / "pipe", link = folder / "link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/null", link);
  for (const std::filesystem::path& path : {pipe, link, std::filesystem::path("/dev/null")})
    expect_error([&] { expect_name_of_file(path); }, ExitCode::kCantCreate, {path.string(), "not a regular file"});
  expect_error([&] { expect_name_of_file(folder.path()); }, ExitCode::kCantCreate, {"is a folder"});
  write_bytes(folder / "f", "");
  expect_name_of_file(folder / "f");
  expect_name_of_file(folder / "absent" / "f");
}

TEST(CheckedFileTest, TextHasALimit) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "0123456789");
  EXPECT_EQ(read_text_file(folder / "f", 10), "0123456789");
  expect_error([&] { read_text_file(folder / "f", 9); }, ExitCode::kData, {"/f", "10 bytes", "at most 9"});
}

// Of any length, at any offset, by one thread and by several: those bytes and no others.
TEST(FileMappingTest, WritesTheBytesAtTheirPlace) {
  const TemporaryFolder folder;
  constexpr size_t kBytes = size_t{1} << 20;
  constexpr size_t kPart = 4099;  // of what one thread writes
  ThreadPool threads(3);
  const auto write_and_read = [&](uint64_t offset, const std::string& text) {
    const std::filesystem::path path = folder / "mapped";
    write_bytes(path, "");
    const FileDescriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    const FileMapping mapping = map_for_writing(file, kBytes, path);
    if (!mapping) return false;  // a file system without mappings
    threads.parallel_for((text.size() + kPart - 1) / kPart, [&](size_t part, size_t) {
      mapping.write(offset + part * kPart,
                    bytes_of(text).subspan(part * kPart).first(std::min(kPart, text.size() - part * kPart)));
    });
    std::string expected(kBytes, '\0');
    expected.replace(offset, text.size(), text);
    EXPECT_TRUE(read_bytes(path) == expected) << text.size() << " bytes at " << offset;
    return true;
  };
  std::string text(kBytes - 64, '\0');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(1 + i % 251);
  if (!write_and_read(0, "")) GTEST_SKIP() << "no mappings here";
  for (const uint64_t offset : {0, 1, 8, 63})
    for (const size_t count : {1, 15, 56, 63, 64, 65, 127, 128, 200, 4099})
      write_and_read(offset, text.substr(0, count));
  for (const uint64_t offset : {0, 8, 64}) write_and_read(offset, text);
}

TEST(AtomicFileTest, AppearsOnlyWithCommit) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "f");
  file.write(bytes_of("abc"));
  file.write(bytes_of("def"));
  file.write_at(1, bytes_of("X"));
  EXPECT_FALSE(std::filesystem::exists(folder / "f"));
  file.commit();
  EXPECT_EQ(test::file_names(folder.path()), std::set<std::string>{"f"});
  EXPECT_EQ(read_bytes(folder / "f"), "aXcdef");
}

TEST(AtomicFileTest, LeavesNothingWithoutCommit) {
  const TemporaryFolder folder;
  write_bytes(folder / "f", "old");
  {
    AtomicFile file(folder / "f");
    file.write(bytes_of("new"));
    AtomicFile moved(std::move(file));
    EXPECT_EQ(test::file_names(folder.path()).size(), 2u);
  }
  EXPECT_EQ(test::file_names(folder.path()), std::set<std::string>{"f"});
  EXPECT_EQ(read_bytes(folder / "f"), "old");
}

TEST(AtomicFileTest, ReservedSpaceIsNotPartOfTheFile) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "f");
  file.reserve(1 << 20);
  file.write(bytes_of("abc"));
  file.start_writeback(0, 3);
  file.sync();
  file.commit();
  EXPECT_EQ(read_bytes(folder / "f"), "abc");
}

TEST(AtomicFileTest, NamesTheFileThatCannotBeMade) {
  const TemporaryFolder folder;
  expect_error([&] { AtomicFile file(folder / "absent/f"); }, ExitCode::kCantCreate, {"absent/f"});
}

// Nobody writes to the pipe, so opening it must not wait.
TEST(CheckedFileTest, RefusesANamedPipe) {
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  expect_error([&] { CheckedFile file(folder / "pipe"); }, ExitCode::kData, {"pipe", "not a regular file"});
}

TEST(ErrorTest, MessagesAreOneLineForATerminal) {
  EXPECT_EQ(printable("tensor a.b: 2.5 …"), "tensor a.b: 2.5 …");
  EXPECT_EQ(printable("\x1b[2J\n\r\x7f"), "\\x1b[2J\\x0a\\x0d\\x7f");
  EXPECT_EQ(printable("\xc2\x9b\xc2\xa0"), "\\xc2\\x9b\xc2\xa0");  // a control character of Latin-1
  for (const char* right : {"ä", "…", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"})
    EXPECT_EQ(printable(right), right);
  for (const char* wrong : {"\xe9", "\xe9t\xe9", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff",
                            "\x80", "\xe2\x80"})
    EXPECT_TRUE(printable(wrong).starts_with("\\x")) << printable(wrong);
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_LT(printable(std::string(1 << 20, 'x')).size(), 5000u);
  EXPECT_STREQ(Error(ExitCode::kData, "a\nb").what(), "a\\x0ab");
}

TEST(CheckedArithmeticTest, RefusesOverflow) {
  EXPECT_EQ(checked_multiply(UINT64_C(1) << 32, (UINT64_C(1) << 32) - 1, "t"), 0xffffffff00000000u);
  EXPECT_EQ(checked_add(UINT64_MAX - 1, 1, "t"), UINT64_MAX);
  expect_error([] { checked_multiply(UINT64_C(1) << 32, UINT64_C(1) << 32, "t"); }, ExitCode::kData, {"t:", "64 bits"});
  expect_error([] { checked_add(UINT64_MAX, 1, "t"); }, ExitCode::kData, {"t:", "64 bits"});
}

}  // namespace
}  // namespace lfm2
