#include "server/response_channel.h"

#include <string_view>

#include "base/strings.h"

namespace perigee::server {
namespace {

constexpr std::string_view kDone = "data: [DONE]\n\n";

std::string EventText(std::string_view json) {
  return StrCat("data: ", json, "\n\n");
}

}  // namespace

void ResponseChannel::Open() {
  open_ = true;
  writer_->StartStream("text/event-stream");
}

void ResponseChannel::Event(std::string json) {
  writer_->Write(EventText(json));
}

void ResponseChannel::EndStream() {
  record_->Finish();
  writer_->Write(std::string(kDone));
  writer_->Finish(false);
}

void ResponseChannel::SendBody(std::string json) {
  record_->Finish();
  writer_->Send({.status = 200, .body = std::move(json)});
}

void ResponseChannel::Fail(const ApiError& error) {
  record_->Fail(error);
  if (!open_) return writer_->Send(ErrorResponse(error));
  writer_->Write(StrCat(EventText(ErrorBody(error)), kDone));
  writer_->Finish(true);
}

}  // namespace perigee::server
