//! Enums that are written down: each variant has an explicit number, in one table, never used again.
//!
//! A derived `Serialize` numbers variants by their order, so that a new one in the middle changes the meaning of all
//! bytes that were ever written. With this table bytes may outlive the order.

/// Whether no two variants have the same number: what [`numbered_variants!`](crate::numbered_variants) asks of each table.
#[must_use]
pub const fn are_distinct(numbers: &[(u32, &str)]) -> bool {
    let mut at = 0;
    while at < numbers.len() {
        let mut before = 0;
        while before < at {
            if numbers[before].0 == numbers[at].0 {
                return false;
            }
            before += 1;
        }
        at += 1;
    }
    true
}

/// Writes and reads an enum by a table of numbers. A number that was taken once is never given to another variant.
///
/// Each line is a number and the variant with names for its fields.
///
/// ```
/// #[derive(Debug, PartialEq)]
/// enum Step {
///     Begin(u64),
///     Move { from: u8, to: u8 },
///     End,
/// }
/// ramlace_base::numbered_variants! { Step:
///     1 Begin(at);
///     3 Move { from, to };
///     2 End;
/// }
/// assert_eq!(Step::NUMBERS, [(1, "Begin"), (3, "Move"), (2, "End")]);
/// assert_eq!(Step::Begin(7).number(), 1);
/// ```
///
/// Two variants with one number do not compile:
///
/// ```compile_fail
/// enum Step {
///     Begin,
///     End,
/// }
/// ramlace_base::numbered_variants! { Step:
///     1 Begin;
///     1 End;
/// }
/// ```
#[macro_export]
macro_rules! numbered_variants {
    ($enum:ident: $($number:literal $variant:ident $(($($part:ident),*))? $({ $($field:ident),* })?;)*) => {
        impl $enum {
            /// The number of each variant where it is written down, and its name.
            pub const NUMBERS: &'static [(u32, &'static str)] = &[$(($number, stringify!($variant))),*];

            /// The number of this variant where it is written down.
            #[must_use]
            pub fn number(&self) -> u32 {
                match self { $($enum::$variant { .. } => $number,)* }
            }
        }

        const _: () = assert!($crate::are_distinct($enum::NUMBERS), "two variants have one number");

        impl ::serde::Serialize for $enum {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> ::std::result::Result<S::Ok, S::Error> {
                let number = self.number();
                match self {
                    $($enum::$variant $(($($part),*))? $({ $($field),* })? => {
                        let fields = ($($($part,)*)? $($($field,)*)?);
                        let name = stringify!($variant);
                        serializer.serialize_newtype_variant(stringify!($enum), number, name, &fields)
                    })*
                }
            }
        }

        impl<'de> ::serde::Deserialize<'de> for $enum {
            fn deserialize<D: ::serde::Deserializer<'de>>(deserializer: D) -> ::std::result::Result<$enum, D::Error> {
                struct Variants;

                impl<'de> ::serde::de::Visitor<'de> for Variants {
                    type Value = $enum;

                    fn expecting(&self, into: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                        into.write_str(stringify!($enum))
                    }

                    fn visit_enum<A: ::serde::de::EnumAccess<'de>>(
                        self,
                        data: A,
                    ) -> ::std::result::Result<$enum, A::Error> {
                        use ::serde::de::{Error as _, VariantAccess as _};
                        let (number, body) = data.variant::<u32>()?;
                        match number {
                            $($number => {
                                let ($($($part,)*)? $($($field,)*)?) = body.newtype_variant()?;
                                Ok($enum::$variant $(($($part),*))? $({ $($field),* })?)
                            })*
                            _ => {
                                let text = format!(concat!("no ", stringify!($enum), " has the number {}"), number);
                                Err(A::Error::custom(text))
                            }
                        }
                    }
                }

                deserializer.deserialize_enum(stringify!($enum), &[$(stringify!($variant)),*], Variants)
            }
        }
    };
}
