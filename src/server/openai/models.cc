#include "server/openai/models.h"

#include <charconv>
#include <string>

#include "base/strings.h"
#include "server/api_error.h"
#include "server/json_writer.h"

namespace perigee::server {
namespace {

void WriteModel(JsonWriter& w, const ServingContext& context) {
  const engine::ModelInfo& info = context.engine->model_info();
  w.BeginObject().Field("id", context.served_model_name).Field("object", "model");
  w.Field("created", context.created).Field("owned_by", "perigee");
  w.Field("root", info.model_path).Field("max_model_len", info.context_length).EndObject();
}

std::string PercentDecoded(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned value = 0;
    const char* hex = text.data() + i + 1;
    if (text[i] == '%' && i + 2 < text.size() && std::from_chars(hex, hex + 2, value, 16).ptr == hex + 2) {
      out += static_cast<char>(value);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

HttpResponse ListModels(const ServingContext& context, const HttpRequest&) {
  JsonWriter w;
  w.BeginObject().Field("object", "list").Key("data").BeginArray();
  WriteModel(w, context);
  w.EndArray().EndObject();
  return {.status = 200, .body = w.Take()};
}

HttpResponse GetModel(const ServingContext& context, const HttpRequest& request) {
  constexpr std::string_view kPath = "/v1/models/";
  std::string name = PercentDecoded(std::string_view(request.path).substr(kPath.size()));
  if (name != context.served_model_name)
    return ErrorResponse(
        {.status = 404,
         .message = StrCat("the model ", Quoted(name), " is not served here; this server has ",
                           Quoted(context.served_model_name)),
         .param = "model",
         .code = "model_not_found"});
  JsonWriter w;
  WriteModel(w, context);
  return {.status = 200, .body = w.Take()};
}

}  // namespace perigee::server
