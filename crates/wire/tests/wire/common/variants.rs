//! Values of a type that together show each variant of each enum that can stand in it, found by asking the type's own
//! `Deserialize`. No list of enums is kept, and a variant that is new is found by itself.
//!
//! A value is asked for again and again. Where there is a choice (an option, elements or none, which variant), the
//! least is taken; then, one by one, all others are tried of each value that showed something new. So most values have one path
//! to what they show and nothing beside, and what is found stays as it is when variants are added.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::de::value::Error;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

/// Numbers of variants that are tried beyond as many as there are: some have been taken out.
const NUMBERS_SPARE: u32 = 16;
/// Text, and bytes with a length: a name as files, extended attributes and hosts may have it.
const TEXT: &str = "user.n";
/// Numbers start again behind this one.
const NUMBER_MAX: u8 = 100;
/// The only enum that has no table: serde's own.
const SERDES: &str = "Result";

/// The names of what a value shows first (`Hold.4` is the variant with the number 4), and the value.
///
/// Panics when an enum is numbered by the order of its variants, and when a variant is not reached.
pub fn variants<T: DeserializeOwned>() -> Vec<(String, T)> {
    let (mut seen, mut enums, mut found) = (Seen::default(), Enums::new(), Vec::new());
    let mut scripts = VecDeque::from([Vec::new()]);
    while let Some(script) = scripts.pop_front() {
        let mut maker = Maker::new(&script, &enums);
        let value = T::deserialize(&mut maker);
        let Maker { made, met, places, unread, .. } = maker;
        for (name, variants) in &met.enums {
            enums.entry(name).or_default().variants = *variants;
        }
        let taken: Vec<u32> = made.iter().map(|choice| choice.taken).collect();
        let is_scripted = taken.len() <= script.len();
        match (value, unread) {
            (Ok(value), _) => {
                for (name, number) in met.numbers {
                    enums.entry(name).or_default().numbers.insert(number);
                }
                let mut names = met.names;
                names.retain(|name| seen.names.insert(name.clone()));
                let news = places.into_iter().filter(|place| seen.places.insert(place.clone())).count();
                if names.is_empty() && news == 0 {
                    continue;
                }
                for at in script.len()..made.len() {
                    let others = (0..made[at].ends).filter(|other| *other != made[at].taken);
                    scripts.extend(others.map(|other| [&taken[..at], &[other]].concat()));
                }
                if !names.is_empty() {
                    found.push((names.join("+"), value));
                }
            }
            // No variant has the number that was tried.
            (Err(_), Some((name, number))) => {
                enums.entry(name).or_default().none.insert(number);
                if !is_scripted {
                    scripts.push_front(script);
                }
            }
            // The least is none: something must be where the last choice was.
            (Err(_), None) if !is_scripted && taken.last() == Some(&0) => {
                scripts.push_front([&taken[..taken.len() - 1], &[1]].concat());
            }
            (Err(_), None) => {}
        }
    }
    for (name, known) in &enums {
        assert_eq!(
            known.numbers.len(),
            known.variants,
            "variants of {name} that were met: {:?}",
            known.numbers
        );
    }
    found
}

#[derive(Default)]
struct Seen {
    names: BTreeSet<String>,
    places: BTreeSet<String>,
}

/// What is known of an enum.
#[derive(Default)]
struct Known {
    variants: usize,
    /// Numbers of variants that were met.
    numbers: BTreeSet<u32>,
    /// Numbers that no variant has.
    none: BTreeSet<u32>,
}

type Enums = BTreeMap<&'static str, Known>;

/// A choice: what was taken, of the numbers below the end.
struct Choice {
    taken: u32,
    ends: u32,
}

/// What stands in a value.
#[derive(Default)]
struct Met {
    names: Vec<String>,
    enums: BTreeMap<&'static str, usize>,
    numbers: Vec<(&'static str, u32)>,
}

/// Makes one value.
struct Maker<'run> {
    /// What is taken at the first choices.
    script: &'run [u32],
    enums: &'run Enums,
    made: Vec<Choice>,
    met: Met,
    /// Where choices were: a type's name, and the way from there.
    places: Vec<String>,
    place: String,
    /// A variant's number of which it is not known whether the type has it.
    unread: Option<(&'static str, u32)>,
    /// The last number.
    number: u8,
    /// In a row of bytes that is read one by one: how many there were.
    bytes: usize,
}

impl<'run> Maker<'run> {
    fn new(script: &'run [u32], enums: &'run Enums) -> Maker<'run> {
        let (made, met, places, place) = (Vec::new(), Met::default(), Vec::new(), String::new());
        Maker { script, enums, made, met, places, place, unread: None, number: 0, bytes: 0 }
    }

    fn choose(&mut self, least: u32, ends: u32) -> u32 {
        let taken = self.script.get(self.made.len()).copied().unwrap_or(least);
        self.made.push(Choice { taken, ends });
        self.places.push(self.place.clone());
        taken
    }

    /// Does this at another place: at that of a type, or further on.
    fn at<R>(&mut self, place: String, run: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.place, place);
        let result = run(self);
        self.place = before;
        result
    }

    fn named<R>(&mut self, name: &str, run: impl FnOnce(&mut Self) -> R) -> R {
        self.met.names.push(name.to_owned());
        self.at(name.to_owned(), run)
    }

    fn next(&mut self) -> u8 {
        self.number = self.number % NUMBER_MAX + 1;
        self.number
    }
}

macro_rules! numbers {
    ($($deserialize:ident $visit:ident;)*) => {
        $(fn $deserialize<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let number = self.next();
            visitor.$visit(number.into())
        })*
    };
}

impl<'de> Deserializer<'de> for &mut Maker<'_> {
    type Error = Error;

    numbers! {
        deserialize_u16 visit_u16;
        deserialize_u32 visit_u32;
        deserialize_u64 visit_u64;
        deserialize_i32 visit_i32;
        deserialize_i64 visit_i64;
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bool(true)
    }

    // The first of what has a number in a byte; and bytes of names.
    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if !self.place.ends_with('*') {
            return visitor.visit_u8(1);
        }
        self.bytes += 1;
        visitor.visit_u8(TEXT.as_bytes()[self.bytes - 1])
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXT)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_str(TEXT)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(TEXT.as_bytes())
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_bytes(TEXT.as_bytes())
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.choose(0, 2) == 0 {
            return visitor.visit_none();
        }
        self.at(format!("{}?", self.place), |maker| visitor.visit_some(maker))
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, |maker| visitor.visit_newtype_struct(maker))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, |maker| maker.deserialize_tuple(fields.len(), visitor))
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        parts: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.named(name, |maker| maker.deserialize_tuple(parts, visitor))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, parts: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Parts { maker: self, parts, given: 0 })
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let some = self.choose(0, 2) == 1;
        visitor.visit_seq(Elements { maker: self, some, given: 0 })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let some = self.choose(0, 2) == 1;
        visitor.visit_map(Elements { maker: self, some, given: 0 })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.met.enums.insert(name, variants.len());
        let ends = u32::try_from(variants.len()).expect("few variants") + NUMBERS_SPARE;
        let none = self.enums.get(name).map(|known| &known.none);
        let least = (0..ends).find(|number| none.is_none_or(|none| !none.contains(number)));
        let number = self.choose(least.expect("some number is a variant's"), ends);
        let what = format!("{name}.{number}");
        self.named(&what, |maker| visitor.visit_enum(Variant { maker, name, number }))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        panic!("{}: nothing here is read without its type", self.place)
    }

    forward_to_deserialize_any! {
        i8 i16 i128 u128 f32 f64 char identifier ignored_any
    }
}

/// The parts of a tuple or of a struct.
struct Parts<'maker, 'run> {
    maker: &'maker mut Maker<'run>,
    parts: usize,
    given: usize,
}

impl<'de> SeqAccess<'de> for Parts<'_, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if self.given == self.parts {
            return Ok(None);
        }
        self.given += 1;
        let place = format!("{}.{}", self.maker.place, self.given);
        self.maker.at(place, |maker| seed.deserialize(maker)).map(Some)
    }
}

/// One element, or none; bytes are some.
struct Elements<'maker, 'run> {
    maker: &'maker mut Maker<'run>,
    some: bool,
    given: usize,
}

impl Elements<'_, '_> {
    fn goes_on(&self) -> bool {
        let bytes = self.given > 0 && self.maker.bytes == self.given && self.given < TEXT.len();
        self.some && (self.given == 0 || bytes)
    }
}

impl<'de> SeqAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.goes_on() {
            return Ok(None);
        }
        if self.given == 0 {
            self.maker.bytes = 0;
        }
        let place = format!("{}*", self.maker.place);
        let element = self.maker.at(place, |maker| seed.deserialize(maker))?;
        self.given += 1;
        Ok(Some(element))
    }
}

impl<'de> MapAccess<'de> for Elements<'_, '_> {
    type Error = Error;

    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Error> {
        if !self.some || self.given > 0 {
            return Ok(None);
        }
        self.given += 1;
        let place = format!("{}<", self.maker.place);
        self.maker.at(place, |maker| seed.deserialize(maker)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, Error> {
        let place = format!("{}>", self.maker.place);
        self.maker.at(place, |maker| seed.deserialize(maker))
    }
}

/// A variant that is asked for by its number.
struct Variant<'maker, 'run> {
    maker: &'maker mut Maker<'run>,
    name: &'static str,
    number: u32,
}

impl<'de> EnumAccess<'de> for Variant<'_, '_> {
    type Error = Error;
    type Variant = Self;

    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self), Error> {
        let by_order = Cell::new(false);
        self.maker.unread = Some((self.name, self.number));
        let value = seed.deserialize(Number { number: self.number, by_order: &by_order })?;
        let has_table = !by_order.get() || self.name == SERDES;
        assert!(has_table, "{} is numbered by the order of its variants: numbered_variants!", self.name);
        Ok((value, self))
    }
}

impl Variant<'_, '_> {
    /// The type has the variant.
    fn is_read(&mut self) {
        self.maker.unread = None;
        self.maker.met.numbers.push((self.name, self.number));
    }
}

impl<'de> VariantAccess<'de> for Variant<'_, '_> {
    type Error = Error;

    fn unit_variant(mut self) -> Result<(), Error> {
        self.is_read();
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(mut self, seed: S) -> Result<S::Value, Error> {
        self.is_read();
        seed.deserialize(self.maker)
    }

    fn tuple_variant<V: Visitor<'de>>(mut self, parts: usize, visitor: V) -> Result<V::Value, Error> {
        self.is_read();
        self.maker.deserialize_tuple(parts, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.tuple_variant(fields.len(), visitor)
    }
}

/// A variant's number: a table asks for it as a number, an order of variants as their name.
struct Number<'run> {
    number: u32,
    by_order: &'run Cell<bool>,
}

impl<'de> Deserializer<'de> for Number<'_> {
    type Error = Error;

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_u32(self.number)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.by_order.set(true);
        visitor.visit_u64(self.number.into())
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Error> {
        Err(Error::custom("a variant has a number"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum ignored_any
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "its text is compared")]
    struct Walk {
        steps: Option<Vec<Step>>,
    }

    #[derive(Debug)]
    enum Step {
        Begin(u64),
        Turn { by: Option<Way> },
    }
    ramlace_base::numbered_variants! { Step:
        1 Begin(at);
        3 Turn { by };
    }

    #[derive(Debug)]
    enum Way {
        Left,
        Right,
    }
    ramlace_base::numbered_variants! { Way:
        0 Left;
        1 Right;
    }

    #[derive(Deserialize)]
    enum Ordered {
        One,
        Two,
    }

    #[test]
    fn each_variant_is_found_below_options_rows_and_other_variants() {
        let found: Vec<String> =
            variants::<Walk>().iter().map(|(name, walk)| format!("{name}: {walk:?}")).collect();
        assert_eq!(
            found,
            [
                "Walk: Walk { steps: None }",
                "Step.1: Walk { steps: Some([Begin(1)]) }",
                "Step.3: Walk { steps: Some([Turn { by: None }]) }",
                "Way.0: Walk { steps: Some([Turn { by: Some(Left) }]) }",
                "Way.1: Walk { steps: Some([Turn { by: Some(Right) }]) }",
            ]
        );
    }

    #[test]
    #[should_panic(expected = "Ordered is numbered by the order of its variants")]
    fn an_enum_without_a_table_is_refused() {
        drop(variants::<Vec<Ordered>>());
    }
}
