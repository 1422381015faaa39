//! Schemas: what can be enforced, and what tools say of their parameters.

use ironstar_text::JsonText;
use serde_json::Value;

use crate::ApiError;

/// Keywords that bound a value.
const ENFORCED: [&str; 27] = [
    "anyOf",
    "oneOf",
    "allOf",
    "$ref",
    "const",
    "enum",
    "type",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
];

/// Keywords that bound nothing.
const REMARKS: [&str; 16] = [
    "$anchor",
    "$defs",
    "definitions",
    "$schema",
    "$id",
    "id",
    "$comment",
    "title",
    "description",
    "default",
    "readOnly",
    "writeOnly",
    "examples",
    "deprecated",
    "contentMediaType",
    "contentEncoding",
];

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// Keywords of draft 2020-12 that ask for what cannot be enforced here.
const BEYOND: [&str; 13] = [
    "not",
    "if",
    "then",
    "else",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "uniqueItems",
    "contains",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
];

/// Bytes of a schema that is enforced.
const SCHEMA_BYTES_MAX: usize = 1 << 20;

/// Key by which llguidance is told how to read a schema.
const OPTIONS: &str = "x-guidance";

/// Refuses a schema that is none, and under `strict` one with keywords that would not be enforced:
/// the error names the first of them. Whether patterns are regular expressions, and whether
/// references lead somewhere, is found out where the grammar is compiled.
pub(crate) fn check_schema(json: &str, path: &str, strict: bool) -> Result<(), ApiError> {
    if json.len() > SCHEMA_BYTES_MAX {
        let message =
            format!("`{path}` has {} bytes; wanted at most {SCHEMA_BYTES_MAX}", json.len());
        return Err(ApiError::invalid(path, message));
    }
    let schema: Value = serde_json::from_str(json).map_err(|error| {
        ApiError::invalid(path, format!("`{path}` cannot be read as a schema: {error}"))
    })?;
    check(&schema, path, strict)
}

/// The depth is bounded by the parser that read the value.
fn check(schema: &Value, path: &str, strict: bool) -> Result<(), ApiError> {
    let wrong = |at: &str, found: &Value, wanted: &str| {
        let found: String = found.to_string().chars().take(60).collect();
        Err(ApiError::invalid(at, format!("`{at}` is {found}; wanted {wanted}")))
    };
    let members = match schema {
        Value::Bool(_) => return Ok(()),
        Value::Object(members) => members,
        other => return wrong(path, other, "a schema: an object, true or false"),
    };
    for (keyword, value) in members {
        let at = format!("{path}.{keyword}");
        let known = ENFORCED.contains(&keyword.as_str()) || REMARKS.contains(&keyword.as_str());
        if keyword == OPTIONS || (strict && !known) {
            let what = if BEYOND.contains(&keyword.as_str()) {
                "cannot be enforced"
            } else {
                "is unknown"
            };
            let message = format!("the keyword `{keyword}` at `{path}` {what}; leave it out");
            return Err(ApiError::unsupported(at, message));
        }
        match (keyword.as_str(), value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", value) => {
                let Value::Object(inner) = value else {
                    return wrong(&at, value, "an object of schemas");
                };
                for (name, schema) in inner {
                    check(schema, &format!("{at}.{name}"), strict)?;
                }
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", value) => {
                let Value::Array(inner) = value else {
                    return wrong(&at, value, "an array of schemas");
                };
                for (index, schema) in inner.iter().enumerate() {
                    check(schema, &format!("{at}[{index}]"), strict)?;
                }
            }
            ("items", Value::Array(_)) => {}
            ("items" | "additionalProperties" | "additionalItems", value) => {
                check(value, &at, strict)?;
            }
            ("type", value) => {
                let is_type = |value: &Value| value.as_str().is_some_and(|t| TYPES.contains(&t));
                let all = match value {
                    Value::Array(all) => !all.is_empty() && all.iter().all(is_type),
                    one => is_type(one),
                };
                if !all {
                    return wrong(&at, value, &format!("one of {}", TYPES.join(", ")));
                }
            }
            ("enum", value) if value.as_array().is_none_or(|all| all.is_empty()) => {
                return wrong(&at, value, "an array that is not empty");
            }
            ("required", value) => {
                let names = value.as_array().is_some_and(|all| all.iter().all(Value::is_string));
                if !names {
                    return wrong(&at, value, "an array of names");
                }
            }
            ("pattern" | "$ref" | "format", value) if !value.is_string() => {
                return wrong(&at, value, "a string");
            }
            _ => {}
        }
    }
    Ok(())
}

/// A rule body for JSON by a schema. White space between things is bounded, since a model in
/// doubt writes it for ever. What is not strict is enforced as far as it can be.
pub(super) fn json_rule(schema: &str, strict: bool) -> String {
    let options = format!(
        "{{\"{OPTIONS}\": {{\"whitespace_pattern\": \"[ \\\\t\\\\n\\\\r]{{1,20}}\", \
         \"lenient\": {}}}",
        !strict
    );
    let members = schema.trim_start().strip_prefix('{').unwrap_or("}").trim_start();
    let comma = if members.starts_with('}') { "" } else { ", " };
    format!("%json {options}{comma}{members}")
}

/// A parameter of a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) name: String,
    pub(super) required: bool,
    pub(super) value: PropertyValue,
}

/// What a parameter may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PropertyValue {
    /// Free text.
    Text,
    /// One of these texts.
    OneOf(Vec<String>),
    /// JSON by this schema, definitions included.
    Json(String),
}

/// Parameters that a schema names, in order; `None` if it is no plain object of named parameters.
pub(super) fn properties(schema: &str) -> Option<Vec<Property>> {
    let members = JsonText::parse(schema).ok()?.entries()?;
    let find = |wanted: &str| members.iter().find(|(key, _)| key == wanted).map(|(_, v)| v);
    if ["anyOf", "oneOf", "allOf", "$ref"].iter().any(|keyword| find(keyword).is_some()) {
        return None;
    }
    let required: Vec<String> = find("required")
        .and_then(|list| serde_json::from_str(list.as_str()).ok())
        .unwrap_or_default();
    let definitions: String = ["$defs", "definitions"]
        .iter()
        .filter_map(|name| Some(format!("\"{name}\": {}, ", find(name)?.as_str())))
        .collect();
    let named = find("properties").map_or_else(|| Some(Vec::new()), JsonText::entries)?;
    let property = |(name, schema): (String, JsonText)| {
        let value = value_of(&schema, &definitions);
        Property { required: required.contains(&name), name, value }
    };
    Some(named.into_iter().map(property).collect())
}

fn value_of(schema: &JsonText, definitions: &str) -> PropertyValue {
    let Some(members) = schema.entries() else {
        return PropertyValue::Json("{}".to_owned());
    };
    let find = |wanted: &str| members.iter().find(|(key, _)| key == wanted).map(|(_, v)| v);
    let strings = |list: &JsonText| serde_json::from_str::<Vec<String>>(list.as_str()).ok();
    let is_string = find("type").and_then(JsonText::as_string).as_deref() == Some("string");
    match find("enum").and_then(strings) {
        Some(texts) if !texts.is_empty() => return PropertyValue::OneOf(texts),
        _ if is_string => return PropertyValue::Text,
        _ => {}
    }
    let inner = schema.as_str().strip_prefix('{').unwrap_or("}");
    let definitions = if inner == "}" { definitions.trim_end_matches(", ") } else { definitions };
    PropertyValue::Json(format!("{{{definitions}{inner}"))
}
