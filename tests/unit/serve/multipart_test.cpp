// Bodies in which clients send files, as Python's httpx and curl write them, and broken ones.
#include "serve/http/multipart.h"

#include <gtest/gtest.h>

#include "support/weights_support.h"

namespace lfm2::http {
namespace {

constexpr const char* kType = "multipart/form-data; boundary=XX";

TEST(MultipartTest, PartsAsClientsWriteThem) {
  const std::string body =
      "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n"
      "--XX\r\ncontent-disposition:form-data;name=file; filename=\"a \\\"b\\\";c.jsonl\"\r\n"
      "Content-Type: application/jsonl\r\n\r\n{}\r\n--X\r\n\r\n--XX--\r\n";
  const std::vector<FormPart> parts = parse_form(kType, body);
  ASSERT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts[0].name, "purpose");
  EXPECT_FALSE(parts[0].file_name);
  EXPECT_EQ(parts[0].content, "batch");
  EXPECT_EQ(parts[1].name, "file");
  EXPECT_EQ(parts[1].file_name, "a \"b\";c.jsonl");
  EXPECT_EQ(parts[1].content, "{}\r\n--X\r\n");
  EXPECT_EQ(parse_form("Multipart/Form-Data; charset=x; boundary=\"a b\"",
                       "preamble\r\n--a b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n\r\n--a b--")[0]
                .content,
            "");
  EXPECT_TRUE(parse_form(kType, "--XX--").empty());
}

TEST(MultipartTest, Refused) {
  const std::string head = "Content-Disposition: form-data; name=\"x\"\r\n\r\n";
  std::string many;
  for (int i = 0; i < 65; ++i)
    many += fmt::format("--XX\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n\r\n", i);
  for (const auto& [type, body, reason] :
       {std::tuple{"application/json", std::string("{}"), "application/json"},
        {"multipart/form-data", "--XX--", "no boundary"},
        {"multipart/form-data; boundary=", "--XX--", "no boundary"},
        {"multipart/form-data; boundary=\"XX", "--XX--", "quote"},
        {kType, "", "the body has no boundary"},
        {kType, "--XX", "not followed by a line break"},
        {kType, "--XX\r\n" + head, "does not end"},
        {kType, "--XX\r\nContent-Disposition: form-data", "head of a part"},
        {kType, "--XX\r\nno colon\r\n\r\n\r\n--XX--", "without a colon"},
        {kType, "--XX\r\nA: b\r\n\r\n\r\n--XX--", "no Content-Disposition"},
        {kType, "--XX\r\n\r\n\r\n--XX--", "no Content-Disposition"},
        {kType, "--XX\r\nContent-Disposition: form-data\r\n\r\n\r\n--XX--", "no name"},
        {kType, "--XX\r\n" + std::string(9000, 'a') + "\r\n\r\n\r\n--XX--", "head"},
        {kType, "--XX\r\n" + head + "\r\n--XX\r\n" + head + "\r\n--XX--", "two parts"},
        {kType, many + "--XX--", "64 parts"}})
    lfm2::test::expect_error([&] { parse_form(type, body); }, ExitCode::kData, {"request: ", reason});
}

}  // namespace
}  // namespace lfm2::http
