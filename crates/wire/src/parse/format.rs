//! Form of an answer.

use ironstar_text::JsonText;
use ironstar_text::chat::ResponseFormat;

use crate::json::{Fields, Kind, Node};
use crate::{ApiError, Format, grammar};

#[derive(Clone, Copy)]
enum Name {
    Text,
    Object,
    Schema,
}

/// Reads a format whose schema stands under `inner` (Chat), or beside the type (the others).
pub(super) fn format(node: &Node<'_>, inner: Option<&str>) -> Result<Format, ApiError> {
    let mut fields = node.object()?;
    let kinds =
        [("text", Name::Text), ("json_object", Name::Object), ("json_schema", Name::Schema)];
    match fields.need("type")?.one_of(&kinds)? {
        Name::Text => Ok(Format::Text),
        Name::Object => Ok(Format::JsonObject),
        Name::Schema => match inner {
            Some(name) => schema(&mut fields.need(name)?.object()?),
            None => schema(&mut fields),
        },
    }
}

fn schema(fields: &mut Fields<'_>) -> Result<Format, ApiError> {
    let name = fields.string("name")?.unwrap_or_else(|| "answer".to_owned());
    let strict = fields.bool("strict")?.unwrap_or(false);
    let schema = fields.need("schema")?;
    if schema.kind() != Kind::Object {
        return Err(schema.wrong("a JSON schema, which is an object"));
    }
    grammar::check_schema(schema.raw(), schema.path(), strict)?;
    Ok(Format::JsonSchema { name, schema: schema.raw().to_owned(), strict })
}

/// The same for the prompt.
pub(super) fn shown(format: &Format) -> ResponseFormat {
    match format {
        Format::Text => ResponseFormat::Text,
        Format::JsonObject => ResponseFormat::JsonObject,
        Format::JsonSchema { schema, .. } => {
            JsonText::parse(schema).map_or(ResponseFormat::JsonObject, ResponseFormat::JsonSchema)
        }
    }
}
