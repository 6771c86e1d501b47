// Builds an answer of /v1/responses: a response object, whole or as the stream of events that it grows by.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json/json.h"
#include "openai/response_builder.h"

namespace lfm2 {

class ResponsesBuilder : public ResponseBuilder {
 public:
  // Of a request that parse_responses_request() returned. `id`: a part of all ids. The tokenizer of `facts` must
  // outlive this.
  ResponsesBuilder(const OpenAiRequest& request, std::string id, const ResponseFacts& facts);

  void add(size_t, const DrawnToken& token, int64_t cached) override;
  bool done() const override { return end_.has_value(); }
  bool large() const override { return false; }
  std::string body() override;
  bool streams() const override { return stream_; }
  std::vector<StreamEvent> events(size_t, bool gathers) override;
  std::vector<StreamEvent> last_events() override;
  std::vector<StreamEvent> error_events(int status, std::string_view message) override;

 private:
  struct Kind;
  static const Kind& kind_of(AnswerPart::Kind kind);
  OrderedJson call_json(const std::string& name) const;
  void add_items();
  void begin_item(const AnswerPart& part);
  void extend_item(const std::string& text);
  void end_item(std::string_view status);
  void end_response();
  void add_event(std::string_view type, OrderedJson fields);
  void add_response_event(std::string_view status);
  OrderedJson place() const;
  OrderedJson& text();  // of the last item

  const bool stream_;
  const std::string id_;
  const std::shared_ptr<const ResponsesShape> shape_;
  AnswerReader reader_;
  OrderedJson response_;                  // with the items so far as its "output"
  std::vector<AnswerPart> parts_;         // that are in no item yet
  std::optional<AnswerPart::Kind> open_;  // the kind of the last item, until it ends
  std::vector<StreamEvent> events_;       // that were not returned yet
  int64_t sequence_ = 0;                  // events so far
  struct {
    int64_t prompt = 0, cached = 0, drawn = 0;
  } tokens_;
  std::optional<FinishReason> end_;
};

// The builder of the answer to a request: a ResponsesBuilder or a CompletionBuilder. `id` makes its ids unique.
std::unique_ptr<ResponseBuilder> make_builder(const OpenAiRequest& request, std::string id, ResponseFacts facts,
                                              int64_t max_scored);

}  // namespace lfm2
