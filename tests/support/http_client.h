// An HTTP client over a plain socket, so that tests can send any bytes at any pace, read slowly and go away rudely.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace lfm2::test {

struct HttpReply {
  int status = 0;                              // 0: none came
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;                            // without the form of chunks
  bool whole = false;                          // as its length or its last chunk says
};

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int receive_buffer_bytes = 0);
  HttpClient(HttpClient&& other) noexcept;
  HttpClient& operator=(HttpClient&&) = delete;
  ~HttpClient();

  bool send(std::string_view bytes);  // false where the server has closed
  // The next reply; 100 Continue is one too. Waits for so long for each piece of it.
  HttpReply reply(bool to_head = false, std::chrono::milliseconds patience = std::chrono::seconds(20));
  std::string read_some(std::chrono::milliseconds patience);                   // empty: closed, or nothing came
  bool closed(std::chrono::milliseconds patience = std::chrono::seconds(20));  // reads on until the server closes
  void shut_writing();
  void close();
  void reset();  // closes with RST

 private:
  bool fill(std::chrono::milliseconds patience);  // false: nothing more comes

  int socket_ = -1;
  bool ended_ = false;
  std::string input_;
};

// A request with a body of a known length, or none.
std::string http_request(std::string_view method, std::string_view target, std::string_view body = {},
                         std::string_view fields = {});

}  // namespace lfm2::test
